"""One call on a sequence: inference mode around it, and what torch raises in it as EngineError."""

from typing import Any, Generic, Protocol, TypeVar

import torch

from carousel_server.engine.protocol import EngineError, Sequence


class Owned(Sequence, Protocol):
    """A sequence that knows when it cannot be used any more."""

    failed: bool


S = TypeVar("S", bound=Owned)


class Call(Generic[S]):
    """`with Call(seq, kind) as own`. What the engine itself refuses changes nothing; any other error leaves the
    sequence unusable. A CUDA error is fatal, and so is a device without memory left: the plan was wrong."""

    def __init__(self, seq: Sequence, kind: type[S]) -> None:
        """Raises EngineError for another engine's sequence, and for one that was released or failed."""
        if not isinstance(seq, kind):
            raise EngineError(f"a {type(seq).__name__} is not a sequence of this engine")
        if seq.failed:
            raise EngineError("the sequence was released or failed in an earlier call")
        self.seq, self.mode = seq, torch.inference_mode()

    def __enter__(self) -> S:
        self.mode.__enter__()
        return self.seq

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.mode.__exit__(kind, error, trace)
        if error is None or isinstance(error, EngineError):
            return
        self.seq.failed = True
        if isinstance(error, torch.OutOfMemoryError):
            raise EngineError(
                f"the device is out of memory beyond its plan: {first_line(error)}", fatal=True
            ) from error
        if isinstance(error, RuntimeError):
            raise EngineError(f"the device failed: {first_line(error)}", fatal="CUDA" in str(error)) from error


def first_line(error: BaseException) -> str:
    """What happened; torch goes on with advice for those who debug it, which clients and status lines need not see."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
