"""The revision of a spec: a digest of the user's intent and of the pod template's version. Pure.

Never a digest of the rendered pod, so a new operator build alone restarts nothing. Values that equal their default
are left out, so a field added to the CRD later changes no revision either.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from carousel_operator.change import class_of, leaves
from carousel_operator.resource import InferenceServerSpec

TEMPLATE_VERSION: Final = 1  # raised by hand when running pods must be replaced for a template change


@dataclass(frozen=True, order=True)
class Reference:
    """A Secret or ConfigMap that the pods' environment reads; `key` None means every key."""

    kind: Literal["Secret", "ConfigMap"]
    name: str
    key: str | None
    optional: bool = False


def of(spec: InferenceServerSpec) -> str:
    """Ten hexadecimal digits; equal for specs that need no restart of each other's pods."""
    intent = spec.model_dump(by_alias=True, mode="json", exclude_defaults=True)
    restart = {path: value for path, value in leaves(intent) if class_of(path) == "Restart"}
    return _digest({"template": TEMPLATE_VERSION, "intent": restart})[:10]


def references(spec: InferenceServerSpec) -> tuple[Reference, ...]:
    """What the environment refers to: a change of these values needs a restart, of other keys none."""
    found = []
    for env in spec.pod.env:
        source = env.value_from
        if source and (secret := source.secret_key_ref):
            found.append(Reference("Secret", secret.name, secret.key, bool(secret.optional)))
        if source and (config := source.config_map_key_ref):
            found.append(Reference("ConfigMap", config.name, config.key, bool(config.optional)))
    for group in spec.pod.env_from:
        if group.secret_ref:
            found.append(Reference("Secret", group.secret_ref.name, None, bool(group.secret_ref.optional)))
        if group.config_map_ref:
            found.append(Reference("ConfigMap", group.config_map_ref.name, None, bool(group.config_map_ref.optional)))
    return tuple(sorted(set(found), key=lambda r: (r.kind, r.name, r.key or "", r.optional)))


def secrets_digest(spec: InferenceServerSpec, data: Mapping[tuple[str, str], Mapping[str, str] | None]) -> str:
    """Digest of the referenced values; empty when nothing is referenced.

    `data` maps (kind, name) to the object's `data`, None or absent when the object does not exist.
    """
    values: dict[str, object] = {}
    for ref in references(spec):
        held = data.get((ref.kind, ref.name)) or {}
        path = f"{ref.kind}/{ref.name}/{ref.key or '*'}"
        values[path] = dict(held) if ref.key is None else held.get(ref.key)
    return _digest(values)[:10] if values else ""


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
