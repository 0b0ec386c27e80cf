"""Orders of core_gated_server.py for a server on a GPU: draft always, what memory was taken, and faults of the device.

The faults are the device's own: a kernel that writes where nothing is, an allocation that no device has room for.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from carousel_server.engine import gpu
from carousel_server.engine.mtp import DraftCost

NOWHERE = 2**44  # an address that no allocation has
TOO_MUCH = 2**50  # bytes


def always_draft(engine: Any) -> None:
    """Sequences that begin from now on draft as many tokens as they may, however the drafts fare."""
    assert isinstance(gpu.COST, DraftCost)
    gpu.COST = DraftCost(draft=0.0, row=0.0)


def memory(engine: Any) -> dict[str, int]:
    """Bytes that torch's allocator held at most, for tensors and in all, and those free on the device now."""
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "free": torch.cuda.mem_get_info()[0],
    }


def fault(engine: Any, kind: str) -> None:
    """The next decode step meets this fault of FAULTS first, inside the engine's call."""
    steps, fail = type(engine.steps), FAULTS[kind]
    call = steps.__call__

    def faulty(*arguments: Any, **named: Any) -> Any:
        fail()
        return call(*arguments, **named)

    steps.__call__ = faulty


@triton.jit
def _write(address):
    tl.store(address.to(tl.pointer_type(tl.int32)), 1)


def _illegal() -> None:
    _write[(1,)](NOWHERE)


def _exhausted() -> None:
    torch.empty(TOO_MUCH, dtype=torch.uint8, device="cuda")


FAULTS: dict[str, Callable[[], None]] = {"illegal access": _illegal, "no memory": _exhausted}
