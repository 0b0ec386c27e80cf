"""Host memory that the GPU reads where it lies: mapped files and plain memory, registered with the driver."""

import torch
from torch import Tensor

from carousel_server.engine.protocol import EngineError

PAGE = 4096
MAPPED, READ_ONLY = 2, 8  # cudaHostRegister flags


class Registered:
    """Registered ranges, for as long as this object lives or until `close`."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, tensors: list[Tensor], *, read_only: bool = True) -> None:
        """Register the pages of tensors in host memory, neighbours as one range. EngineError says what refused."""
        spans = sorted((t.data_ptr() // PAGE * PAGE, -(-(t.data_ptr() + t.nbytes) // PAGE) * PAGE) for t in tensors)
        merged: list[list[int]] = []
        for begin, end in spans:
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([begin, end])
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        for begin, end in merged:
            flags = MAPPED | (READ_ONLY if read_only else 0)
            error = runtime.cudaHostRegister(begin, end - begin, flags)
            if int(error) != 0:
                raise EngineError(
                    f"the driver does not register {end - begin} bytes of host memory (error {int(error)}): "
                    "a file system without shared maps, or a limit on locked memory"
                )
            self._ranges.append((begin, end))

    def close(self) -> None:
        """Unregister everything."""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        for begin, _ in self._ranges:
            runtime.cudaHostUnregister(begin)
        self._ranges.clear()
