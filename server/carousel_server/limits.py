"""The limits and engine settings of a server, under the names the InferenceServer resource gives them.

Read by the server's configuration, the memory plan and the operator's CRD: this is their only definition.
Free of torch and of any web framework.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from carousel_server.units import Bytes, Duration

KiB, MiB, GiB = 2**10, 2**20, 2**30


class Model(BaseModel):
    """camelCase outside, snake_case inside; an unknown key is an error."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class SessionLimits(Model):
    """How many sessions are kept, in how many bytes, and for how long idle."""

    count: int = Field(64, ge=1, le=100_000, description="Sessions kept at most.")
    bytes: Bytes | None = Field(
        None, description="Host memory for session histories; unset: 256Mi, or less for a small model."
    )
    idle: Duration = Field(900.0, gt=0, description="An idle session is dropped after this long.")


class PrefixCacheLimits(Model):
    """How many reusable checkpoints are kept, in how many bytes, and for how long idle."""

    count: int = Field(16, ge=0, le=100_000, description="Checkpoints kept at most; 0 turns the cache off.")
    bytes: Bytes | None = Field(None, description="Host memory for checkpoints; unset: 8Gi, or less for a small model.")
    idle: Duration = Field(900.0, gt=0, description="An idle checkpoint is dropped after this long.")


class Limits(Model):
    """Hot limits: changed on a running server without a restart."""

    active_requests: int = Field(4, ge=1, le=256, description="Requests that take turns on the GPU.")
    queued_requests: int = Field(64, ge=0, le=100_000, description="Requests that wait; one more gets 429.")
    max_output_tokens: int = Field(
        4096, ge=1, description="Output tokens of a client that names no limit, and the ceiling of one that does."
    )
    sessions: SessionLimits = Field(default_factory=SessionLimits, description="Sessions in memory.")
    prefix_cache: PrefixCacheLimits = Field(default_factory=PrefixCacheLimits, description="Reusable checkpoints.")
    checkpoint_bytes: Bytes | None = Field(
        None, description="Host memory for suspended requests; unset: 4Gi, or less for a small model."
    )
    request_bytes: Bytes = Field(4 * MiB, ge=1024, description="Body of one request; a larger one gets 413.")
    response_bytes: Bytes = Field(
        4 * MiB, ge=1024, description="Raw decoded bytes of one response; reaching it finishes with `length`."
    )
    socket_timeout: Duration = Field(30.0, gt=0, description="A client that reads nothing for this long is cancelled.")


class EngineSettings(Model):
    """Start-only settings: a change needs a drained restart."""

    context_tokens: int | None = Field(
        None, ge=64, description="Longest sequence; unset: 32768 or the checkpoint's maximum, whichever is smaller."
    )
    prefill_chunk: int | None = Field(
        None,
        ge=64,
        multiple_of=64,
        description="Prompt tokens of one turn; unset: 1024, or 4096 with streamed experts.",
    )
    expert_pool_bytes: Bytes | None = Field(
        None, description="GPU memory for resident experts; unset: what the plan leaves free."
    )
    gpu_state_slots: int | None = Field(None, ge=1, le=16, description="Sequences kept on the GPU; unset: at most 4.")
    drafts: int = Field(2, ge=0, le=3, description="Draft tokens of the MTP head; 0 turns it off.")
    weights: Literal["bf16", "fp8"] | None = Field(
        None, description="Layout of the dense weights on the GPU; unset: as the checkpoint has them."
    )
    output_queue_bytes: Bytes = Field(MiB, ge=4096, description="Output held for a slow reader before it is cancelled.")
    header_timeout: Duration = Field(15.0, gt=0, description="A client must send its request head within this time.")
