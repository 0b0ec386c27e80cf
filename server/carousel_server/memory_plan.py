"""Bytes from limits: what a server will hold on the GPU and in host memory. Pure, free of torch; the operator uses it.

Order of claims on the GPU: dense weights, scratch, state slots at the full context, and what is left is the expert
pool. Nothing grows past the plan later: every limit here is enforced by a reservation in the server.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from carousel_server.limits import EngineSettings, GiB, KiB, Limits, MiB
from carousel_server.model_shape import ModelShape
from carousel_server.units import human_bytes

Device = Literal["cpu", "cuda"]

HISTORY_TOKEN_BYTES = (
    16  # a token of a session's history: about 4.5 bytes of text, kept twice, and its share of objects
)
PROMPT_TOKEN_BYTES = 64  # a token of a waiting prompt: its text, its id and the rendered copy
SAMPLER_VOCAB_BYTES = 24  # a vocabulary entry of one sampler: counts, bias, mask and three fp32 work rows
HOST_RUNTIME = {"cpu": 512 * MiB, "cuda": 2 * GiB}  # interpreter, libraries, tokenizer, thread pools; CUDA's own maps
GPU_RUNTIME = GiB  # context, captured graphs, library workspaces
POOL_EXPERTS_PER_LAYER = 10  # fewer resident experts than one row selects would make read-through pointless


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

    `gpu_bytes` and `host_bytes` are what is there (device memory, cgroup limit); None means unknown and is not
    checked. With an unknown GPU the pool is planned at its minimum, unless `expert_pool_bytes` says otherwise.
    """
    element = 4 if device == "cpu" else 2
    context = engine.context_tokens or min(32_768, shape.max_context_tokens)
    errors = []
    if context > shape.max_context_tokens:
        errors.append(
            f"engine.contextTokens is {context}, the checkpoint's maximum is {shape.max_context_tokens}: lower it"
        )
    token, fixed = shape.token_state_bytes(element), shape.fixed_state_bytes(element)
    sequence = fixed + context * token
    slot = shape.slot_bytes(context, engine.drafts if shape.mtp_layers else 0, element)
    filled = _fill(limits, context, sequence)
    if device == "cuda":
        gpu, chosen, streamed, gpu_errors = _gpu(shape, engine, context, slot, gpu_bytes)
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
    host = _host(shape, filled, chosen, device, context, slot, streamed)
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


def scratch_bytes(shape: ModelShape, chunk: int, context: int, element: int) -> int:
    """Activations of one prefill chunk, its index scores, and logits of a verified step with three drafts."""
    row = 8 * shape.streams * shape.hidden + 4 * shape.mixed_channels + 4 * shape.heads * shape.head_dim
    row += shape.experts_per_token * (3 * shape.expert_width + shape.hidden)
    return chunk * (row * element + 4 * -(-context // shape.index_ratio)) + 4 * 3 * 4 * shape.vocab


def _gpu(
    shape: ModelShape, engine: EngineSettings, context: int, slot: int, memory: int | None
) -> tuple[tuple[Row, ...], EngineSettings, bool, list[str]]:
    """Rows of the GPU, settings as chosen, whether experts are streamed, and what does not fit."""
    dense = shape.dense_params * (1 if engine.weights == "fp8" else shape.dense_element_bytes)
    every = shape.moe_layers * shape.experts * shape.expert_bytes
    least = min(every, shape.moe_layers * POOL_EXPERTS_PER_LAYER * shape.expert_bytes)

    def layout(chunk: int) -> tuple[int, int, int]:
        """Slots, pool and scratch for a chunk."""
        scratch = scratch_bytes(shape, chunk, context, 2)
        left = None if memory is None else memory - GPU_RUNTIME - dense - scratch
        pool_least = engine.expert_pool_bytes if engine.expert_pool_bytes is not None else least
        slots = engine.gpu_state_slots or (4 if left is None else max(1, min(4, (left - pool_least) // slot)))
        pool = engine.expert_pool_bytes
        if pool is None:
            pool = least if left is None else max(least, min(every, left - slots * slot))
        return slots, min(pool, every), scratch

    slots, pool, scratch = layout(engine.prefill_chunk or 1024)
    chunk = engine.prefill_chunk or (1024 if pool >= every else 4096)
    slots, pool, scratch = layout(chunk)
    streamed = pool < every
    share = 100 * pool // every if every else 100
    rows = (
        Row("dense weights", dense, f"{shape.dense_params} parameters outside routed experts and n-gram table"),
        Row("scratch", scratch, f"one prefill chunk of {chunk} tokens at a context of {context}"),
        Row("state slots", slots * slot, f"{slots} sequences of {context} tokens"),
        Row("expert pool", pool, f"{share}% of {shape.moe_layers * shape.experts} experts"),
        Row("runtime", GPU_RUNTIME, "CUDA context, captured graphs, library workspaces"),
    )
    errors = []
    total = sum(row.bytes for row in rows)
    if pool < least:
        errors.append(
            f"engine.expertPoolBytes is {human_bytes(pool)}; {POOL_EXPERTS_PER_LAYER} experts of each of "
            f"{shape.moe_layers} layers need {human_bytes(least)}"
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
            "expert_pool_bytes": pool,
        }
    )
    return rows, chosen, streamed, errors


def _host(
    shape: ModelShape,
    limits: Limits,
    engine: EngineSettings,
    device: Device,
    context: int,
    slot: int,
    streamed: bool,
) -> tuple[Row, ...]:
    active, waiting = limits.active_requests, limits.active_requests + limits.queued_requests
    slots = engine.gpu_state_slots or 1
    prompt = min(limits.request_bytes + 8 * context, PROMPT_TOKEN_BYTES * context)
    output = 2 * limits.response_bytes + engine.output_queue_bytes
    every = shape.moe_layers * shape.experts
    rows = []
    if device == "cpu":
        weights = 4 * (shape.dense_params + shape.routed_params + shape.table_params)
        scratch = scratch_bytes(shape, engine.prefill_chunk or 1024, context, 4)
        rows += [
            Row("weights", weights, "every parameter in fp32"),
            Row("scratch", scratch, f"one prefill chunk of {engine.prefill_chunk} tokens"),
            Row("state slots", slots * slot, f"{slots} sequences of {context} tokens"),
        ]
    else:
        table = shape.table_params * shape.expert_element_bytes
        experts = every * shape.expert_bytes if streamed else 0
        note = f"{every} experts, read where they lie" if streamed else "all resident on the GPU"
        rows += [
            Row("n-gram table", table, "registered file map, read by the GPU"),
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
