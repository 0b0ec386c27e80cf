"""The engine: weights, experts and sequences. Knows nothing of HTTP, sessions or requests.

Importing this package loads no torch; `load` does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, overload

if TYPE_CHECKING:
    from carousel_server.engine.gpu import GpuEngine
    from carousel_server.engine.torch_engine import TorchEngine

EMBEDDED: Final = Path(__file__).parent.parent / "embedded"


def model_folder(path_or_embedded: str) -> Path:
    """The folder that a `--model` value names; "embedded" is the small model inside this package."""
    return EMBEDDED if path_or_embedded == "embedded" else Path(path_or_embedded)


@overload
def load(
    path_or_embedded: str,
    *,
    context_tokens: int | None,
    slots: int,
    drafts: int,
    threads: int | None = None,
    device: Literal["cpu"] = "cpu",
) -> "TorchEngine": ...
@overload
def load(
    path_or_embedded: str,
    *,
    context_tokens: int | None,
    slots: int,
    drafts: int,
    threads: int | None = None,
    device: Literal["cpu", "cuda"],
    expert_pool_bytes: int | None = None,
    prefill_rows: int = 1024,
    saved_bytes: int = 0,
    dense_fp8: bool = False,
    progress: Callable[[float, str], None] | None = None,
) -> "TorchEngine | GpuEngine": ...
def load(
    path_or_embedded: str,
    *,
    context_tokens: int | None,
    slots: int,
    drafts: int,
    threads: int | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
    expert_pool_bytes: int | None = None,
    prefill_rows: int = 1024,
    saved_bytes: int = 0,
    dense_fp8: bool = False,
    progress: Callable[[float, str], None] | None = None,
) -> "TorchEngine | GpuEngine":
    """Check a checkpoint, map it and build an engine: on the CPU in float32, or on the GPU in the checkpoint's types.

    context_tokens None: 32768 or the checkpoint's maximum, whichever is smaller; slots: live sequences, allocated at
    once; drafts: 0 .. 3, ignored without a draft head; threads None: what quota and affinity give. On the GPU only:
    expert_pool_bytes None: every expert resident; prefill_rows: prompt rows of one pass; saved_bytes: host memory made
    ready at once for suspended sequences and snapshots; dense_fp8: projections of DeltaNet and attention quantised;
    progress(share, what): told what begins, share 0 .. 1.
    Raises CheckpointError (config.py) for a faulty checkpoint or an impossible context; nothing stays loaded then.
    """
    if device == "cuda":
        from carousel_server.engine.gpu_start import start as start_gpu

        return start_gpu(
            model_folder(path_or_embedded),
            context_tokens=context_tokens,
            slots=slots,
            drafts=drafts,
            expert_pool_bytes=expert_pool_bytes,
            prefill_rows=prefill_rows,
            saved_bytes=saved_bytes,
            dense_fp8=dense_fp8,
            progress=progress,
        )
    from carousel_server.engine.start import start

    return start(
        model_folder(path_or_embedded), context_tokens=context_tokens, slots=slots, drafts=drafts, threads=threads
    )


__all__ = ["EMBEDDED", "load", "model_folder"]
