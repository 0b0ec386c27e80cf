"""From a server's settings to what it serves with: the checkpoint's shape, the memory plan, then template and engine.

What cannot start ends with one of the exit codes of admin_state.EXIT_CODES, and a sentence.
"""

import json
import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from carousel_server.engine import load, model_folder
from carousel_server.engine.protocol import Engine, EngineError
from carousel_server.failure import Failure
from carousel_server.limits import EngineSettings, Limits
from carousel_server.memory_plan import Device, MemoryPlan, plan
from carousel_server.model_shape import ModelShape
from carousel_server.prepare import Preparer
from carousel_server.prompt import PromptTemplate
from carousel_server.tokenizer import Tokenizer
from carousel_server.turn import Constraint, Settings, Tool

log = logging.getLogger(__name__)

DeviceChoice = Literal["auto", "cpu", "cuda"]
INVALID, MISSING, POISONED, GPU_MEMORY, DOES_NOT_FIT = 64, 66, 70, 71, 78
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class StartError(Exception):
    """The server cannot run: `code` is its exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Source:
    """What to serve."""

    model: str  # a folder, or "embedded"
    engine: Literal["torch", "scripted", "uniform"]
    limits: Limits
    settings: EngineSettings
    device: DeviceChoice = "auto"  # auto: the GPU if there is one
    model_sampling: bool = False  # the checkpoint's sampling defaults instead of greedy
    threads: int | None = None

    @property
    def folder(self) -> Path:
        return model_folder(self.model)


@dataclass(frozen=True)
class Blueprint:
    """What is known before anything large is loaded."""

    source: Source
    shape: ModelShape
    plan: MemoryPlan
    replan: Callable[[Limits], MemoryPlan]


@dataclass(frozen=True)
class Loaded:
    """What the ports and the core need, the engine not yet made."""

    vocabulary: Any
    preparer: Preparer
    defaults: Settings
    make_engine: Callable[[], Engine]


def blueprint(source: Source) -> Blueprint:
    """Read the checkpoint's shape and plan its bytes. Raises StartError 66, 70 or 78."""
    path = source.folder / "config.json"
    try:
        shape = ModelShape.from_config(json.loads(path.read_text(encoding="utf-8")), source.model)
    except FileNotFoundError:
        raise StartError(MISSING, f"there is no model in {source.folder}: {path} is missing") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StartError(MISSING, f"the model in {source.folder} cannot be served: config.json: {error}") from None
    device, gpu_bytes = _device(source)

    def replan(limits: Limits) -> MemoryPlan:
        return plan(
            shape,
            limits,
            source.settings,
            device=device,
            gpu_bytes=gpu_bytes,
            host_bytes=host_memory(CGROUP_LIMITS),
        )

    planned = replan(source.limits)
    if not planned.fits:
        raise StartError(DOES_NOT_FIT, planned.table())
    return Blueprint(source, shape, planned, replan)


def load_model(sketch: Blueprint, progress: Callable[[float, str], None]) -> Loaded:
    """Tokenizer, template and a way to make the engine. Raises StartError 66."""
    source, settings = sketch.source, sketch.plan.engine
    progress(0.02, "reading the tokenizer and the chat template")
    try:
        vocabulary = _vocabulary(source)
        template = PromptTemplate.load(source.folder, vocabulary)
        defaults = _model_sampling(source.folder) if source.model_sampling else Settings()
    except (OSError, ValueError) as error:
        raise StartError(MISSING, f"the model in {source.folder} cannot be served: {error}") from None

    def compile_grammar(constraint: Constraint, tools: tuple[Tool, ...], parallel: bool) -> Any:
        if source.engine != "torch":
            raise Failure(
                "unsupported",
                f"The test engine {source.engine} enforces no grammar; serve a model for this.",
                param="tool_choice" if constraint.kind == "call" else "response_format",
            )
        from carousel_server.grammar import compile as compile_for

        return compile_for(constraint, tools, vocabulary, parallel=parallel)

    preparer = Preparer(vocabulary, template, compile_grammar)
    context, slots = settings.context_tokens or 0, settings.gpu_state_slots or 1

    def make_engine() -> Engine:
        if source.engine == "torch":
            return start_engine(sketch, progress)
        from carousel_server.engine.scripted import ScriptedEngine
        from carousel_server.engine.uniform import UniformEngine

        kind = ScriptedEngine if source.engine == "scripted" else UniformEngine
        return kind(vocabulary, context_tokens=context, slots=slots)  # type: ignore[return-value]

    return Loaded(vocabulary, preparer, defaults, make_engine)


def _vocabulary(source: Source) -> Any:
    if source.engine == "torch":
        return Tokenizer.load(source.folder)
    from carousel_server.engine.byte_vocabulary import ByteVocabulary

    return ByteVocabulary()


def start_engine(sketch: Blueprint, progress: Callable[[float, str], None]) -> Engine:
    """The engine of the plan's device, with the sizes that the plan counted."""
    source, planned, settings, limits = sketch.source, sketch.plan, sketch.plan.engine, sketch.plan.limits

    def further(share: float, what: str) -> None:
        progress(0.1 + 0.9 * share, f"loading onto the GPU: {what}")

    progress(0.1, f"loading the weights ({planned.device})")
    return load(
        source.model,
        context_tokens=settings.context_tokens,
        slots=settings.gpu_state_slots or 1,
        drafts=settings.drafts,
        threads=source.threads,
        device=planned.device,
        expert_pool_bytes=settings.expert_pool_bytes,
        prefill_rows=settings.prefill_chunk or 1024,
        saved_bytes=(limits.checkpoint_bytes or 0) + (limits.prefix_cache.bytes or 0),
        dense_fp8=settings.weights == "fp8",
        progress=further,
    )


def _device(source: Source) -> tuple[Device, int | None]:
    """Where the model runs, and the bytes that are free on a GPU. A GPU that was asked for and is not there, or does
    not answer, is StartError 70: the model must not run slowly elsewhere unnoticed."""
    if source.engine != "torch" or source.device == "cpu":
        return "cpu", None
    import torch

    if not torch.cuda.is_available():
        why = "this torch was built without CUDA" if torch.version.cuda is None else "torch finds no usable device"
        if source.device == "cuda":
            raise StartError(POISONED, f"--device cuda: {why}; look at the node's driver, or serve with --device cpu")
        log.info("running on the CPU: %s", why)
        return "cpu", None
    try:
        return "cuda", int(torch.cuda.mem_get_info()[0])
    except RuntimeError as error:
        raise StartError(POISONED, f"the GPU does not answer: {error}") from None


def device_code(error: BaseException) -> int | None:
    """The exit code for an error of the GPU, in the words of torch and of the driver; None for any other."""
    if not isinstance(error, RuntimeError | EngineError):
        return None
    if "out of memory" in str(error):
        return GPU_MEMORY
    return POISONED if "CUDA" in str(error) else None


def host_memory(limits: tuple[Path, ...]) -> int:
    """Bytes that this process may use: the cgroup's limit, at most the machine's memory."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in limits:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            return min(int(text), machine)
    return machine


def _model_sampling(folder: Path) -> Settings:
    """The sampling defaults of generation_config.json."""
    path = folder / "generation_config.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not found.get("do_sample", False):
        return Settings()
    defaults = Settings(
        temperature=float(found.get("temperature", 1.0)),
        top_p=float(found.get("top_p", 1.0)),
        top_k=int(found.get("top_k", 0)),
        min_p=float(found.get("min_p", 0.0) or 0.0),
        repetition_penalty=float(found.get("repetition_penalty", 1.0)),
    )
    if not math.isfinite(defaults.temperature):
        raise ValueError(f"{path}: temperature is {defaults.temperature}")
    return defaults
