"""InferenceServer as typed data: the spec that a user writes. Its status is in status_fields.py.

The CRD and its reference page are generated from these models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from carousel_server.limits import Limits, Model
from pydantic import Field, ValidationError

from carousel_operator import names, rules
from carousel_operator.pod_fields import PodOptions
from carousel_operator.spec_fields import (
    Auth,
    Cache,
    Drain,
    Engine,
    Gpu,
    Image,
    ModelSpec,
    Monitoring,
    NetworkPolicy,
    Preset,
    Resources,
    Restart,
    ServiceOptions,
    Startup,
)
from carousel_operator.status_fields import Status


class InvalidSpec(ValueError):
    """A spec that cannot be carried out. `field` is a path such as `spec.limits.sessions.count`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class InferenceServerSpec(Model):
    """What the user wants."""

    model: ModelSpec
    image: Image
    replicas: int = Field(1, ge=0, le=1000, description="Pods, one GPU each.")
    suspend: bool = Field(False, description="Drain all pods and keep none.")
    gpu: Gpu = Field(default_factory=Gpu)
    limits: Limits = Field(default_factory=Limits, description="Limits that change on running servers.")
    engine: Engine = Field(default_factory=Engine)
    resources: Resources = Field(default_factory=Resources)
    drain: Drain = Field(default_factory=Drain)
    startup: Startup = Field(default_factory=Startup)
    restart: Restart | None = None
    cache: Cache | None = None
    pod: PodOptions = Field(default_factory=PodOptions)
    service: ServiceOptions = Field(default_factory=ServiceOptions)
    auth: Auth = Field(default_factory=Auth)
    network_policy: NetworkPolicy = Field(default_factory=NetworkPolicy)
    monitoring: Monitoring = Field(default_factory=Monitoring)

    @property
    def preset(self) -> Preset | None:
        """The preset in force: the embedded model is `tiny`."""
        return "tiny" if self.model.source.embedded is not None else self.model.preset

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """From the API server's JSON. Raises InvalidSpec for the first field at fault, cross-field rules included."""
        try:
            spec = cls.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            path = ".".join(str(part) for part in ("spec", *first["loc"]))
            raise InvalidSpec(path, first["msg"].removeprefix("Value error, ")) from None
        for rule in rules.SPEC_RULES:
            if rule.holds is not None and not rule.holds(spec):
                raise InvalidSpec(f"spec{rule.field}", rule.message)
        return spec

    def dump(self) -> dict[str, Any]:
        """The whole spec as JSON that `parse` reads back."""
        return self.model_dump(by_alias=True, mode="json", exclude_none=True)


@dataclass(frozen=True)
class InferenceServer:
    """One InferenceServer as read from the API server."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: InferenceServerSpec
    annotations: Mapping[str, str]
    status: Mapping[str, Any]
    deleting: bool = False

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> Self:
        """From the object's JSON. Raises InvalidSpec; metadata is taken as it is."""
        meta = obj.get("metadata") or {}
        return cls(
            name=meta["name"],
            namespace=meta.get("namespace", "default"),
            uid=meta.get("uid", ""),
            generation=meta.get("generation", 0),
            spec=InferenceServerSpec.parse(obj.get("spec") or {}),
            annotations=dict(meta.get("annotations") or {}),
            status=dict(obj.get("status") or {}),
            deleting="deletionTimestamp" in meta,
        )

    @property
    def preview(self) -> bool:
        """Changes are shown and not carried out."""
        return self.annotations.get(names.ANNOTATION_PREVIEW) == "true"


__all__ = ["InferenceServer", "InferenceServerSpec", "InvalidSpec", "Status"]
