"""Bytes from limits: what a server will hold on the GPU and in host memory. Pure, free of torch; the operator uses it.

Order of claims on the GPU: dense weights, scratch, state slots at the full context, and what is left is the expert
pool. Nothing grows past the plan later: every limit here is enforced by a reservation in the server.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from carousel_server import allocations
from carousel_server.allocations import SLOT_BYTES, StateBytes, scratch_bytes
from carousel_server.limits import EngineSettings, GiB, KiB, Limits, MiB
from carousel_server.model_shape import ModelShape
from carousel_server.units import human_bytes

Device = Literal["cpu", "cuda"]

HISTORY_TOKEN_BYTES = (
    16  # a token of a session's history: about 4.5 bytes of text, kept twice, and its share of objects
)
PROMPT_TOKEN_BYTES = 64  # a token of a waiting prompt: its text, its id and the rendered copy
SAMPLER_VOCAB_BYTES = 24  # a vocabulary entry of one sampler: counts, bias, mask and three fp32 work rows
# interpreter, libraries, tokenizer, thread pools: measured on the CPU (docs/configuration.md), an allowance with CUDA
HOST_RUNTIME = {"cpu": 768 * MiB, "cuda": 2 * GiB}
GPU_RUNTIME = GiB  # an allowance for the context, captured graphs and library workspaces


@dataclass(frozen=True)
class Row:
    """One line of the plan. `key` is stable, `note` is for people."""

    key: str
    bytes: int
    note: str


@dataclass(frozen=True)
class MemoryPlan:
    """The plan, with every unset limit and setting filled in."""

    model: str
    device: Device
    host: tuple[Row, ...]
    gpu: tuple[Row, ...]
    limits: Limits
    engine: EngineSettings
    sequence_bytes: int  # one full sequence, suspended
    experts_streamed: bool  # the GPU's pool does not hold every expert
    errors: tuple[str, ...]

    @property
    def host_bytes(self) -> int:
        """Sum of the host rows."""
        return sum(row.bytes for row in self.host)

    @property
    def gpu_bytes(self) -> int:
        """Sum of the GPU rows; 0 on a CPU."""
        return sum(row.bytes for row in self.gpu)

    @property
    def fits(self) -> bool:
        """No limit contradicts another, the checkpoint or the memory that is there."""
        return not self.errors

    @property
    def digest(self) -> str:
        """Twelve hex digits that differ when any row, limit or setting differs."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """JSON of `GET /admin/plan` and of the operator's status."""
        return {
            "model": self.model,
            "device": self.device,
            "host": [{"key": r.key, "bytes": r.bytes, "note": r.note} for r in self.host],
            "gpu": [{"key": r.key, "bytes": r.bytes, "note": r.note} for r in self.gpu],
            "hostBytes": self.host_bytes,
            "gpuBytes": self.gpu_bytes,
            "limits": self.limits.model_dump(by_alias=True, mode="json"),
            "engine": self.engine.model_dump(by_alias=True, mode="json"),
            "errors": list(self.errors),
        }

    def table(self) -> str:
        """The plan for a terminal, largest unit first, with totals and whatever does not fit."""
        lines = [f"memory plan {self.digest} for {self.model} on {self.device}"]
        for title, rows, total in (("gpu", self.gpu, self.gpu_bytes), ("host", self.host, self.host_bytes)):
            lines += [f"  {title:<5}{row.key:<20}{human_bytes(row.bytes):>10}  {row.note}" for row in rows]
            lines += [f"  {title:<5}{'total':<20}{human_bytes(total):>10}"] if rows else []
        return "\n".join(lines + [f"does not fit: {error}" for error in self.errors])


def plan(
    shape: ModelShape,
    limits: Limits,
    engine: EngineSettings,
    *,
    device: Device,
    gpu_bytes: int | None = None,
    host_bytes: int | None = None,
) -> MemoryPlan:
    """Every byte a server of this checkpoint will hold.

    `gpu_bytes` and `host_bytes` are what is there (device memory; the cgroup's limit or the machine's memory); None
    means unknown and is not checked. With an unknown GPU the pool is planned at its minimum, unless
    `expert_pool_bytes` says otherwise.
    """
    context = engine.context_tokens or min(32_768, shape.max_context_tokens)
    errors = []
    if context > shape.max_context_tokens:
        errors.append(
            f"engine.contextTokens is {context}, the checkpoint's maximum is {shape.max_context_tokens}: lower it"
        )
    state = (allocations.gpu_state if device == "cuda" else allocations.cpu_state)(shape, context, engine.drafts)
    sequence = state.fixed + context * state.token
    filled = _fill(limits, context, sequence)
    if device == "cuda":
        gpu, chosen, streamed, gpu_errors = _gpu(shape, engine, context, state, gpu_bytes)
        errors += gpu_errors
    else:
        chosen = engine.model_copy(
            update={
                "context_tokens": context,
                "prefill_chunk": engine.prefill_chunk or 1024,
                "gpu_state_slots": engine.gpu_state_slots or 4,
                "expert_pool_bytes": 0,
            }
        )
        gpu, streamed = (), False
        if engine.weights == "fp8":
            errors.append("engine.weights is fp8: on the CPU weights are fp32, leave it unset")
    host = _host(shape, filled, chosen, device, context, state, streamed)
    total = sum(row.bytes for row in host)
    if host_bytes is not None and total > host_bytes:
        largest = max(host, key=lambda row: row.bytes)
        errors.append(
            f"host memory: planned {human_bytes(total)} of {human_bytes(host_bytes)} "
            f"({total - host_bytes} bytes too many); the largest row is {largest.key} with {human_bytes(largest.bytes)}"
        )
    return MemoryPlan(shape.name, device, host, gpu, filled, chosen, sequence, streamed, tuple(errors))


def _fill(limits: Limits, context: int, sequence: int) -> Limits:
    """A byte default is the smaller of its figure and count x one full sequence of this checkpoint."""

    def default(value: int | None, figure: int, count: int, each: int) -> int:
        return value if value is not None else min(figure, count * each)

    sessions, cache = limits.sessions, limits.prefix_cache
    return limits.model_copy(
        update={
            "sessions": sessions.model_copy(
                update={
                    "bytes": default(sessions.bytes, 256 * MiB, sessions.count, context * HISTORY_TOKEN_BYTES + 4 * KiB)
                }
            ),
            "prefix_cache": cache.model_copy(update={"bytes": default(cache.bytes, 8 * GiB, cache.count, sequence)}),
            "checkpoint_bytes": default(limits.checkpoint_bytes, 4 * GiB, limits.active_requests, sequence),
        }
    )


def _gpu(
    shape: ModelShape, engine: EngineSettings, context: int, state: StateBytes, memory: int | None
) -> tuple[tuple[Row, ...], EngineSettings, bool, list[str]]:
    """Rows of the GPU, settings as chosen, whether experts are streamed, and what does not fit."""
    layers, top = allocations.expert_layers(shape, engine.drafts), shape.experts_per_token
    dense, table = (
        allocations.weight_bytes(shape, engine.drafts, fp8=engine.weights == "fp8"),
        allocations.table_bytes(shape)[1],
    )

    def streams(experts: int) -> int:
        return shape.expert_bytes * allocations.area_slots(shape.experts, top, experts)

    def pool(experts: int) -> int:
        return allocations.pool_bytes(shape, layers, experts) + streams(experts)

    def experts_for(budget: int, each: int) -> int:
        return allocations.pool_slots(budget, layers=layers, experts=shape.experts, top=top, expert_bytes=each)

    def layout(chunk: int) -> tuple[int, int, int]:
        """State slots, experts of each layer in the pool, and scratch for a chunk."""
        scratch = scratch_bytes(shape, chunk, context, allocations.activation_bytes(shape))
        left = None if memory is None else memory - GPU_RUNTIME - dense - table - scratch - state.once
        asked = engine.expert_pool_bytes
        known = None if asked is None else experts_for(asked, shape.expert_bytes)
        least = min(pool(top), pool(shape.experts)) if known is None else pool(known)
        slots = engine.gpu_state_slots or (4 if left is None else max(1, min(4, (left - least) // state.slot)))
        if known is not None:
            return slots, known, scratch
        free = None if left is None else left - slots * state.slot
        if free is not None and free >= pool(shape.experts):
            return slots, shape.experts, scratch
        return slots, top if free is None else experts_for(free - pool(0), shape.expert_bytes + SLOT_BYTES), scratch

    slots, experts, scratch = layout(engine.prefill_chunk or 1024)
    chunk = engine.prefill_chunk or (1024 if experts == shape.experts else 4096)
    slots, experts, scratch = layout(chunk)
    rows = (
        Row(
            "dense weights",
            dense,
            "everything outside routed experts and n-gram table, vectors in fp32"
            + (", projections of DeltaNet and attention in FP8" if engine.weights == "fp8" else "")
            + (", and a copy of the head in FP8 for drafts" if engine.drafts > 0 and shape.mtp_layers else ""),
        ),
        Row("n-gram table", table, "small enough for the GPU" if table else "in host memory"),
        Row("scratch", scratch, f"one prefill chunk of {chunk} tokens at a context of {context}, and a step's buffers"),
        Row("state slots", state.once + slots * state.slot, f"{slots} sequences of {context} tokens"),
        Row(
            "expert pool",
            allocations.pool_bytes(shape, layers, experts),
            f"{experts} of {shape.experts} experts of each of {layers} layers",
        ),
        Row("expert streams", streams(experts), "two layers of a prompt in turn, and a step's misses"),
        Row("runtime", GPU_RUNTIME, "CUDA context, captured graphs, library workspaces"),
    )
    errors = []
    total = sum(row.bytes for row in rows)
    least = layers * top * shape.expert_bytes
    if engine.expert_pool_bytes is not None and engine.expert_pool_bytes < least:
        errors.append(
            f"engine.expertPoolBytes is {human_bytes(engine.expert_pool_bytes)}; the {top} experts of one token in "
            f"each of {layers} layers need {human_bytes(least)}"
        )
    stored = "fp32" if shape.dense_element_bytes == 4 else "bf16"
    if engine.weights not in (None, stored, "fp8"):
        errors.append(
            f"engine.weights is {engine.weights}: only the checkpoint's {stored} and fp8 are built, leave it unset"
        )
    if memory is not None and total > memory:
        errors.append(
            f"GPU memory: planned {human_bytes(total)} of {human_bytes(memory)} ({total - memory} bytes too many): "
            "lower engine.contextTokens, gpuStateSlots, prefillChunk or expertPoolBytes"
        )
    chosen = engine.model_copy(
        update={
            "context_tokens": context,
            "prefill_chunk": chunk,
            "gpu_state_slots": slots,
            "expert_pool_bytes": layers * experts * shape.expert_bytes,
        }
    )
    return rows, chosen, experts < shape.experts, errors


def _host(
    shape: ModelShape,
    limits: Limits,
    engine: EngineSettings,
    device: Device,
    context: int,
    state: StateBytes,
    streamed: bool,
) -> tuple[Row, ...]:
    active, waiting = limits.active_requests, limits.active_requests + limits.queued_requests
    slots = engine.gpu_state_slots or 1
    prompt = min(limits.request_bytes + 8 * context, PROMPT_TOKEN_BYTES * context)
    output = 2 * limits.response_bytes + engine.output_queue_bytes
    every = allocations.expert_layers(shape, engine.drafts) * shape.experts
    rows = []
    if device == "cpu":
        weights = 4 * (shape.dense_params + shape.routed_params + shape.table_params)
        scratch = scratch_bytes(shape, engine.prefill_chunk or 1024, context, 4)
        rows += [
            Row("weights", weights, "every parameter in fp32"),
            Row("scratch", scratch, f"one prefill chunk of {engine.prefill_chunk} tokens"),
            Row("state slots", slots * state.slot, f"{slots} sequences of {context} tokens"),
        ]
    else:
        table = allocations.table_bytes(shape)[0]
        if streamed:
            experts = every * (shape.expert_bytes + 3 * allocations.ALIGNMENT)
            note = f"{every} experts, read where they lie"
        else:
            batch = allocations.loading_batch(shape.experts, shape.expert_bytes)
            experts = allocations.LOADING_BUFFERS * batch * shape.expert_bytes
            note = "all resident on the GPU; buffers that they pass on their way there"
        rows += [
            Row("n-gram table", table, "registered file map, read by the GPU" if table else "on the GPU"),
            Row("experts", experts, note),
        ]
    sampler = active * shape.vocab * SAMPLER_VOCAB_BYTES
    rows += [
        Row("suspended state", limits.checkpoint_bytes or 0, f"limits.checkpointBytes for {active} active requests"),
        Row("prefix cache", limits.prefix_cache.bytes or 0, f"at most {limits.prefix_cache.count} checkpoints"),
        Row("sessions", limits.sessions.bytes or 0, f"at most {limits.sessions.count} histories"),
        Row("prompts", waiting * prompt, f"{waiting} active and queued requests"),
        Row("responses", (active + 1) * output, f"output of {active} requests, and of replies still being written"),
        Row("samplers", sampler, f"counts, bias, mask and work rows of {active} requests"),
        Row("runtime", HOST_RUNTIME[device], "interpreter, libraries, tokenizer, thread pools"),
    ]
    return tuple(rows)


def rows_by_key(rows: Sequence[Row]) -> dict[str, int]:
    """Row key to bytes."""
    return {row.key: row.bytes for row in rows}
