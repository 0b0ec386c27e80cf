"""InferenceServer status as typed data. Filled by status.py; the CRD's status schema is generated from it."""

from typing import Annotated, Literal

from carousel_server.limits import Model
from pydantic import Field

from carousel_operator.field_types import Format, ListMap, ObjectName, Text, Timestamp

Message = Annotated[str, Field(max_length=4096)]
Short = Annotated[str, Field(max_length=128)]
Count = Annotated[int, Field(ge=0)]
PodState = Literal[
    "Pending",
    "PullingImage",
    "DownloadingModel",
    "Loading",
    "Serving",
    "Draining",
    "Closed",
    "Terminating",
    "Failed",
    "Lost",
    "Unreachable",
]


class RevisionStatus(Model):
    """Revisions of the pods."""

    current: Short | None = Field(None, description="Revision of the pods that serve.")
    desired: Short | None = Field(None, description="Revision that the spec asks for.")


class LimitsStatus(Model):
    """How far the latest limits have come."""

    generation: int | None = Field(None, description="metadata.generation of the limits in the ConfigMap.")
    applied_replicas: Count = Field(0, description="Pods that run with them.")


class MemoryRow(Model):
    """One row of the memory plan."""

    name: Short = Field(description="What the bytes are for.")
    where: Literal["gpu", "host"] = Field(description="Where they are.")
    bytes: Count = Field(description="Bytes.")
    note: Text | None = Field(None, description="How the number comes about.")


class MemoryStatus(Model):
    """The memory plan, and what the container gets."""

    host_bytes: Count = Field(0, description="Host memory that the plan needs.")
    gpu_bytes: Count = Field(0, description="GPU memory that the plan needs.")
    container_bytes: Count = Field(0, description="Memory request and limit of the container.")
    reported_host_bytes: Count | None = Field(None, description="Of a running server, when it differs.")
    reported_gpu_bytes: Count | None = Field(None, description="Of a running server, when it differs.")
    table: Annotated[list[MemoryRow], ListMap(("where", "name"))] = Field(
        default_factory=list, max_length=64, description="Row by row; the sums are above."
    )


class LostSessions(Model):
    """Sessions lost to one cause."""

    cause: Short = Field(description="rollout, restart, scale-down, cordon, suspend, eviction, crash and so on.")
    boots: Count = Field(0, description="Server processes that ended, each counted once.")
    sessions: Count = Field(
        0,
        description="Sessions that ended with them: counted at the close of a drained process, and when it was asked "
        "last, up to 15 s before, more if the operator was away, for one that ended unannounced.",
    )


class SessionsStatus(Model):
    """Sessions of all pods."""

    active: Count = Field(0, description="Sessions that exist, idle or in a turn.")
    capacity: Count = Field(0, description="limits.sessions.count of the ready pods together.")
    lost: Annotated[list[LostSessions], ListMap(("cause",))] = Field(
        default_factory=list, max_length=16, description="Since the object was made, by cause."
    )


class ChangeStatus(Model):
    """What the latest change of the spec does, before and while it happens."""

    class_: Literal["None", "Hot", "Resize", "Restart"] = Field(
        alias="class", description="The strongest class of its fields."
    )
    fields: list[Text] = Field(default_factory=list, max_length=64, description="Fields of the spec that changed.")
    since: Timestamp = Field(description="When the operator saw it.")
    sessions: Count | None = Field(None, description="Sessions on the pods that it touches.")
    preview: bool | None = Field(None, description="True: shown only, not carried out.")
    message: Message | None = Field(None, description="What is being done about it.")


class PodDrain(Model):
    """A drain in progress."""

    reason: Short = Field(description="rollout, restart, scale-down, cordon or suspend.")
    started_at: Timestamp = Field(description="By the operator's clock.")
    deadline: Timestamp | None = Field(None, description="Absent where none applies: a cordoned node.")


class PodExit(Model):
    """How a pod's last container ended."""

    code: int = Field(description="Exit code; the server's own are listed in its reference.")
    reason: Short | None = Field(None, description="As the kubelet says: Error, OOMKilled, Completed.")
    at: Timestamp | None = Field(None, description="When it ended.")


class PodStatus(Model):
    """One pod."""

    name: ObjectName = Field(description="Name of the pod.")
    uid: Short | None = Field(None, description="A pod of the same name that was replaced has another one.")
    node: Annotated[str, Field(max_length=253)] | None = Field(None, description="Its node.")
    revision: Short | None = Field(None, description="The revision it was made from.")
    state: PodState = Field(description="Where it stands.")
    progress: Annotated[int, Field(ge=0, le=100)] | None = Field(None, description="Per cent of a download or load.")
    sessions: Count | None = Field(None, description="Sessions it holds; absent when it does not answer.")
    in_flight: Count | None = Field(None, description="Requests queued and running.")
    boot_id: Short | None = Field(None, description="Identity of the running process; sessions belong to it.")
    drain: PodDrain | None = None
    last_exit: PodExit | None = None


class Condition(Model):
    """metav1.Condition."""

    type: Annotated[str, Field(max_length=316)] = Field(description="One of the conditions below.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Annotated[str, Field(min_length=1, max_length=1024)] = Field(description="One of the reasons below.")
    message: Annotated[str, Field(max_length=32768)] = Field("", description="For people, with the numbers.")
    last_transition_time: Timestamp = Field(description="When `status` changed.")
    observed_generation: Count | None = Field(None, description="metadata.generation it was computed from.")


class Status(Model):
    """What the operator saw and does."""

    observed_generation: Annotated[int, Format("int64")] | None = Field(
        None, description="metadata.generation that this status is about."
    )
    replicas: Count = Field(0, description="Pods that exist.")
    ready_replicas: Count = Field(0, description="Pods that accept requests.")
    updated_replicas: Count = Field(0, description="Pods of the desired revision.")
    draining_replicas: Count = Field(0, description="Pods that wait for their sessions.")
    selector: Annotated[str, Field(max_length=512)] | None = Field(None, description="Label selector of the pods.")
    url: Text | None = Field(None, description="Base URL inside the cluster.")
    revision: RevisionStatus | None = None
    limits: LimitsStatus | None = None
    memory: MemoryStatus | None = None
    sessions: SessionsStatus | None = None
    change: ChangeStatus | None = None
    pods: Annotated[list[PodStatus], ListMap(("name",))] = Field(
        default_factory=list, max_length=100, description="The first hundred."
    )
    conditions: Annotated[list[Condition], ListMap(("type",))] = Field(
        default_factory=list, max_length=16, description="What is so and why; see below."
    )
