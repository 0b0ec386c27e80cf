"""The blocks of an InferenceServer's spec, in the order of the spec. What holds across them is in rules.py.

Limits and engine settings are the server's own (carousel_server.limits), so that no limit has a second definition.
"""

from typing import Annotated, Literal

from carousel_server.limits import EngineSettings, Model
from carousel_server.units import Bytes, Duration
from pydantic import Field

from carousel_operator.field_types import Annotations, AutoBytes, Cpu, ListSet, ObjectName, Text
from carousel_operator.pod_fields import PolicyPeer, Port

Preset = Literal["qwen3.8-flash-next-fp8", "qwen3.8-flash-next-bf16", "tiny"]
SourceKind = Literal["pvc", "oci", "hf", "embedded"]
MIN_HOST_MEMORY = 64 * 2**20
DAY, WEEK = 86_400, 7 * 86_400


class SecretKey(Model):
    """One key of a Secret in the same namespace."""

    name: ObjectName = Field(description="Secret in the same namespace; a new token needs no restart.")
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = Field(
        "token", description="Key of the Secret."
    )


class SecretName(Model):
    """A Secret in the same namespace."""

    name: ObjectName = Field(description="Secret in the same namespace.")


class PvcSource(Model):
    """A folder of an existing claim, mounted read-only."""

    claim_name: ObjectName = Field(description="PersistentVolumeClaim in the same namespace.")
    path: Annotated[str, Field(max_length=512, pattern=r"^([^/].*)?$")] = Field(
        "", description="Folder inside the claim; unset: its root."
    )


class OciSource(Model):
    """An image whose root is the model folder, mounted as an image volume."""

    reference: Annotated[str, Field(min_length=1, max_length=512)] = Field(
        description="With a digest, such as registry.example/models/chat@sha256:..."
    )


class HfSource(Model):
    """A repository of the Hugging Face Hub; an init container fills the cache."""

    repo: Annotated[str, Field(min_length=3, max_length=192, pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")] = Field(
        description="Owner and name, such as Qwen/Qwen3.8-Flash-Next-FP8."
    )
    revision: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._/-]+$")] = Field(
        description="Branch, tag or commit; a commit is the only one that never changes."
    )
    token_secret_ref: SecretKey | None = Field(None, description="Token of a gated repository.")


class EmbeddedSource(Model):
    """The tiny model inside the image, for demonstrations and tests."""


class ModelSource(Model):
    """Where the model's files come from: exactly one."""

    pvc: PvcSource | None = None
    oci: OciSource | None = None
    hf: HfSource | None = None
    embedded: EmbeddedSource | None = None

    @property
    def kinds(self) -> list[SourceKind]:
        """The kinds that are set; one in a valid spec."""
        every: tuple[SourceKind, ...] = ("pvc", "oci", "hf", "embedded")
        return [kind for kind in every if getattr(self, kind) is not None]


class ModelSpec(Model):
    """The model and the name that clients use for it."""

    source: ModelSource
    preset: Preset | None = Field(
        None, description="Known sizes of the checkpoint; without it resources.hostMemory is required."
    )
    served_name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")] = Field(
        "chat", description="Name in `model` of requests and in /v1/models."
    )


class Image(Model):
    """The server's image."""

    reference: Annotated[str, Field(min_length=1, max_length=512)] = Field(description="Name with a tag or a digest.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="When a node pulls it; also of an image volume."
    )
    pull_secrets: Annotated[list[ObjectName], ListSet()] = Field(
        default_factory=list, max_length=8, description="Names of Secrets with registry credentials."
    )


class GpuClaim(Model):
    """A device by dynamic resource allocation."""

    device_class_name: ObjectName = Field(description="DeviceClass of the one device.")
    selectors: list[Annotated[str, Field(min_length=1, max_length=2048)]] = Field(
        default_factory=list,
        max_length=8,
        description="CEL expressions over the device; all must hold. One that does not compile is InvalidSpec.",
    )


class Gpu(Model):
    """How a pod gets its one GPU; at most one field. Absent or empty: one nvidia.com/gpu."""

    resource_name: (
        Annotated[
            str, Field(min_length=3, max_length=317, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
        ]
        | None
    ) = Field(None, description="Extended resource, such as nvidia.com/gpu or nvidia.com/mig-3g.71gb.")
    claim: GpuClaim | None = None
    none: Literal[True] | None = Field(None, description="No GPU: the model runs on the CPU.")

    @property
    def kinds(self) -> list[str]:
        """The fields that are set."""
        return [kind for kind in ("resource_name", "claim", "none") if getattr(self, kind) is not None]


class Engine(EngineSettings):
    """Settings of the server's start. A change is a drained restart."""

    expert_pool_bytes: AutoBytes = Field(
        None, description="GPU memory for resident experts; `auto` or unset: what the plan leaves free."
    )
    extra_args: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(
        default_factory=list, max_length=32, description="Further flags of `carousel-server serve`."
    )


class Resources(Model):
    """What the server's container gets."""

    cpu: Cpu = Field(1000, gt=0, description="CPU request; there is no CPU limit.")
    host_memory: Bytes | None = Field(
        None,
        ge=MIN_HOST_MEMORY,
        description="Memory request and limit of the container; unset: computed from limits and preset.",
    )
    shared_memory: Bytes = Field(64 * 2**20, gt=0, description="Size of /dev/shm, counted in the memory.")
    ephemeral_storage: Bytes | None = Field(None, gt=0, description="Request and limit; also the size of /tmp.")


class Drain(Model):
    """How long a pod waits for its sessions and requests before it goes."""

    session_timeout: Duration = Field(600.0, ge=0, le=WEEK, description="Longest wait for sessions; at most 168h.")
    request_timeout: Duration = Field(120.0, ge=0, description="Longest wait for requests; at most 1h.")
    idle_grace: Duration = Field(
        120.0, ge=0, le=WEEK, description="A session idle for this long does not hold up a drain; at most 168h."
    )
    policy: Literal["WaitForSessions", "WaitForRequests", "Immediate"] = Field(
        "WaitForSessions", description="What a drain waits for, up to the time-out of the same name."
    )


class Startup(Model):
    """The start-up budget."""

    timeout: Duration = Field(
        1200.0, gt=0, le=DAY, description="A server that is not ready within this time is restarted; at most 24h."
    )


class Restart(Model):
    """A request for a drained restart: change the id."""

    id: Annotated[str, Field(min_length=1, max_length=63)] = Field(description="Any text; a new one is a new restart.")
    reason: Text | None = Field(None, description="For people.")


class ReplicaCache(Model):
    """A claim for each pod."""

    size: Bytes = Field(gt=0, description="Size of each claim.")
    storage_class_name: ObjectName | None = Field(None, description="Unset: the cluster's default.")


class ClaimCache(Model):
    """One existing claim for all pods."""

    claim_name: ObjectName = Field(description="PersistentVolumeClaim in the same namespace.")
    read_only: bool = Field(False, description="Required with more than one replica.")


class EphemeralCache(Model):
    """An emptyDir, gone with the pod."""

    size_limit: Bytes | None = Field(None, gt=0, description="A pod that exceeds it is evicted; unset: no limit.")


class Cache(Model):
    """Where downloaded models and compiled kernels are kept: at most one. Absent: an emptyDir."""

    per_replica: ReplicaCache | None = None
    claim: ClaimCache | None = None
    ephemeral: EphemeralCache | None = None

    @property
    def kinds(self) -> list[str]:
        """The fields that are set."""
        return [kind for kind in ("per_replica", "claim", "ephemeral") if getattr(self, kind) is not None]


class ServiceOptions(Model):
    """The Service that clients use."""

    port: Port = Field(8000, description="Port of the Service; pods always listen on 8000.")
    annotations: Annotations = Field(default_factory=dict, description="Annotations of the Service.")
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field("ClusterIP", description="As in Kubernetes.")


class Auth(Model):
    """API keys: every key of the Secret is one; its name is the owner's name."""

    api_keys_secret_ref: SecretName | None = None


class NetworkPolicy(Model):
    """Who may reach the pods."""

    enabled: bool = Field(False, description="Make a NetworkPolicy; without `from` only pods and operator pass.")
    from_: list[PolicyPeer] = Field(
        default_factory=list,
        max_length=16,
        alias="from",
        description="Clients on port 8000; the pods themselves and the operator always may.",
    )


class Monitoring(Model):
    """Prometheus."""

    pod_monitor: bool = Field(False, description="Make a PodMonitor, where the cluster has that kind.")
