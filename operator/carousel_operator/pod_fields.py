"""The parts of Kubernetes' own pod API that `spec.pod` and `spec.networkPolicy` take, field for field.

Typed rather than passed through, so that the API server refuses a misspelt field of an InferenceServer at once and
names it, instead of a StatefulSet that cannot be applied later.
"""

from typing import Annotated, Literal

from carousel_server.limits import Model
from pydantic import Field

from carousel_operator.field_types import (
    Annotations,
    LabelKey,
    Labels,
    LabelValue,
    ListMap,
    ObjectName,
    Text,
)


class Requirement(Model):
    """A requirement on a label or a node field."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: list[LabelValue] = Field(default_factory=list, max_length=64)


class LabelSelector(Model):
    """Labels that must match."""

    match_labels: Labels = Field(default_factory=dict)
    match_expressions: list[Requirement] = Field(default_factory=list, max_length=16)


class NodeSelectorTerm(Model):
    """Requirements on a node, all of which must hold."""

    match_expressions: list[Requirement] = Field(default_factory=list, max_length=16)
    match_fields: list[Requirement] = Field(default_factory=list, max_length=16)


class NodeSelector(Model):
    """Terms of which one must hold."""

    node_selector_terms: list[NodeSelectorTerm] = Field(min_length=1, max_length=16)


class PreferredNodes(Model):
    """A preference for nodes, with its weight."""

    weight: int = Field(ge=1, le=100)
    preference: NodeSelectorTerm


class NodeAffinity(Model):
    """Which nodes may or should hold the pods."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredNodes] = Field(
        default_factory=list, max_length=16
    )


class PodAffinityTerm(Model):
    """Other pods to be near to, or away from."""

    topology_key: LabelKey
    label_selector: LabelSelector | None = None
    namespaces: list[ObjectName] = Field(default_factory=list, max_length=16)
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[LabelKey] = Field(default_factory=list, max_length=16)


class WeightedPodAffinityTerm(Model):
    """A preference for or against nearness, with its weight."""

    weight: int = Field(ge=1, le=100)
    pod_affinity_term: PodAffinityTerm


class PodAffinity(Model):
    """Nearness to other pods; the same shape serves distance."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = Field(
        default_factory=list, max_length=16
    )
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] = Field(
        default_factory=list, max_length=16
    )


class Affinity(Model):
    """Where the scheduler may put the pods."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Model):
    """A taint that the pods tolerate."""

    key: LabelKey | None = None
    operator: Literal["Equal", "Exists"] | None = None
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class TopologySpread(Model):
    """How evenly the pods spread over a topology."""

    max_skew: int = Field(ge=1, le=1000)
    topology_key: LabelKey
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    label_selector: LabelSelector | None = Field(None, description="Unset: the pods of this InferenceServer.")
    min_domains: int | None = Field(None, ge=1, le=1000)
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    node_taints_policy: Literal["Honor", "Ignore"] | None = None


class KeySelector(Model):
    """A key of a Secret or a ConfigMap in the same namespace."""

    name: ObjectName
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    optional: bool | None = None


class FieldSelector(Model):
    """A field of the pod itself."""

    field_path: Text
    api_version: Text | None = None


class EnvSource(Model):
    """Where a variable's value comes from."""

    secret_key_ref: KeySelector | None = None
    config_map_key_ref: KeySelector | None = None
    field_ref: FieldSelector | None = None


class Env(Model):
    """An environment variable; names that begin with CAROUSEL_ belong to the operator."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$")]
    value: Annotated[str, Field(max_length=8192)] | None = None
    value_from: EnvSource | None = None


class ObjectRef(Model):
    """A Secret or a ConfigMap in the same namespace, by name."""

    name: ObjectName
    optional: bool | None = None


class EnvFrom(Model):
    """Every key of a Secret or a ConfigMap as a variable."""

    prefix: Annotated[str, Field(max_length=64, pattern=r"^([A-Za-z_][A-Za-z0-9_.-]*)?$")] | None = None
    secret_ref: ObjectRef | None = None
    config_map_ref: ObjectRef | None = None


class SELinuxOptions(Model):
    """SELinux label of the pod's processes."""

    level: Text | None = None
    role: Text | None = None
    type: Text | None = None
    user: Text | None = None


class SecurityContext(Model):
    """Ids of the pod's processes and files; root, privilege and a writable root file system are not on offer."""

    run_as_user: int | None = Field(None, ge=1, le=2**31 - 1, description="Unset: 65532.")
    run_as_group: int | None = Field(None, ge=1, le=2**31 - 1, description="Unset: 65532.")
    fs_group: int | None = Field(None, ge=1, le=2**31 - 1, description="Unset: 65532.")
    fs_group_change_policy: Literal["Always", "OnRootMismatch"] | None = None
    supplemental_groups: list[Annotated[int, Field(ge=1, le=2**31 - 1)]] = Field(default_factory=list, max_length=16)
    se_linux_options: SELinuxOptions | None = None


class PodOptions(Model):
    """What the pods get besides what the operator decides."""

    node_selector: Labels = Field(default_factory=dict, description="Labels that a node must have.")
    tolerations: list[Toleration] = Field(default_factory=list, max_length=32, description="Taints to tolerate.")
    affinity: Affinity | None = None
    topology_spread_constraints: Annotated[list[TopologySpread], ListMap(("topologyKey", "whenUnsatisfiable"))] = Field(
        default_factory=list, max_length=8, description="How pods spread; without labelSelector: those of this server."
    )
    runtime_class_name: ObjectName | None = Field(None, description="RuntimeClass, such as nvidia.")
    priority_class_name: ObjectName | None = Field(None, description="PriorityClass.")
    labels: Labels = Field(default_factory=dict, description="Further labels; the operator's own cannot be changed.")
    annotations: Annotations = Field(default_factory=dict, description="Further annotations, none of carousel.dev.")
    service_account_name: ObjectName | None = Field(
        None, description="Its token is never mounted; it is there for image pull secrets and policies."
    )
    env: Annotated[list[Env], ListMap(("name",))] = Field(
        default_factory=list,
        max_length=64,
        description="Variables of all containers; a changed key of a named Secret is a restart.",
    )
    env_from: list[EnvFrom] = Field(
        default_factory=list,
        max_length=16,
        description="Every key of a Secret or ConfigMap as a variable; CAROUSEL_* among them have no effect.",
    )
    security_context: SecurityContext | None = None


class IPBlock(Model):
    """Addresses by CIDR."""

    cidr: Annotated[str, Field(min_length=1, max_length=43, pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$")]
    except_: list[Annotated[str, Field(max_length=43, pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$")]] = Field(
        default_factory=list, max_length=16, alias="except"
    )


class PolicyPeer(Model):
    """A source of traffic, as in a NetworkPolicy."""

    pod_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    ip_block: IPBlock | None = None


Port = Annotated[int, Field(ge=1, le=65535)]
