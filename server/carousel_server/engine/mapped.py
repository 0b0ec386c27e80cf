"""A safetensors file as a read-only map: tensors are views of the page cache, never copies."""

import json
import mmap
import warnings
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from carousel_server.engine.config import CheckpointError

DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
}
HEADER_LIMIT = 100 * 2**20  # bytes; the format's own bound


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: where its bytes are."""

    name: str
    dtype: str  # as the file spells it
    shape: tuple[int, ...]
    begin: int  # bytes from the start of the file
    nbytes: int


class MappedFile:
    """A checked header and a shared map. The map lives as long as any tensor of it."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError when the file is not a whole, consistent safetensors file."""
        self.path = path
        try:
            with path.open("rb") as file:
                self.size = path.stat().st_size
                if self.size < 8:
                    raise CheckpointError(f"{path}: {self.size} bytes, too short to be a safetensors file")
                self._map = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
        self.entries = self._header()

    def tensor(self, name: str) -> Tensor:
        """A view of the file's bytes; writing to it is an access violation."""
        entry = self.entries[name]
        if not entry.nbytes:
            return torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")
            flat = torch.frombuffer(self._map, dtype=DTYPES[entry.dtype], count=prod(entry.shape), offset=entry.begin)
        return flat.view(entry.shape)

    def _header(self) -> dict[str, Entry]:
        length = int.from_bytes(self._map[:8], "little")
        if length > min(HEADER_LIMIT, self.size - 8):
            raise CheckpointError(
                f"{self.path}: header of {length} bytes in a file of {self.size}: truncated, or not safetensors"
            )
        try:
            raw = json.loads(self._map[8 : 8 + length])
        except ValueError as error:
            raise CheckpointError(f"{self.path}: header is not JSON: {error}") from None
        if not isinstance(raw, dict):
            raise CheckpointError(f"{self.path}: header is not a JSON object")
        return {name: self._entry(name, e, 8 + length) for name, e in raw.items() if name != "__metadata__"}

    def _entry(self, name: str, raw: Any, base: int) -> Entry:
        try:
            dtype, shape, (begin, end) = raw["dtype"], tuple(map(int, raw["shape"])), map(int, raw["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise CheckpointError(f"{self.path}: {name}: malformed header entry {raw!r}") from None
        if dtype not in DTYPES:
            raise CheckpointError(f"{self.path}: {name}: type {dtype} is not supported: {', '.join(DTYPES)} are")
        if not 0 <= begin <= end or base + end > self.size:
            raise CheckpointError(
                f"{self.path}: {name}: bytes {base + begin} to {base + end} of a file of {self.size} bytes: "
                "the file is truncated; download it again"
            )
        expected = prod(shape) * DTYPES[dtype].itemsize
        if end - begin != expected:
            raise CheckpointError(
                f"{self.path}: {name}: {dtype} {list(shape)} takes {expected} bytes, the header gives {end - begin}"
            )
        if (base + begin) % DTYPES[dtype].itemsize:
            raise CheckpointError(
                f"{self.path}: {name}: starts at byte {base + begin}, not aligned to its type {dtype}"
            )
        return Entry(name, dtype, shape, base + begin, end - begin)
