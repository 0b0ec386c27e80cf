"""What ran on the device, kernel by kernel and copy by copy."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


def device_events(run: Callable[[], Any]) -> list[Any]:
    """The profiler's events on the device while `run` runs, until all is done: `name`, `time_range` in us."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    return [e for e in found.events() if e.device_type == DeviceType.CUDA]
