"""Rules across fields of the spec: one table, as CEL for the API server and as a predicate for the operator itself.

`self` in CEL is the spec, because a rule on an optional parent is not evaluated when the parent is added or removed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from carousel_operator import names

if TYPE_CHECKING:
    from carousel_operator.resource import InferenceServerSpec as Spec

MAX_NAME = 50  # the StatefulSet controller adds a hash of 11 characters to a label value of at most 63
MAX_REQUEST_TIMEOUT = 3600.0
RESERVED_LABELS = (names.LABEL_NAME, names.LABEL_INSTANCE, names.LABEL_COMPONENT, names.LABEL_MANAGED_BY)
RESERVED_ARGS = (
    "--limits-",
    "--engine-",
    "--config",
    "--model",
    "--served-name",
    "--host",
    "--port",
    "--admin-",
    "--peers",
    "--api-keys",
)
_SOURCES = ("pvc", "oci", "hf", "embedded")


@dataclass(frozen=True)
class Rule:
    """A rule; `field` is the path below spec that the message is reported at. Transition rules have no predicate."""

    name: str
    field: str
    cel: str
    message: str
    holds: "Callable[[Spec], bool] | None" = None


def _same(path: str) -> str:
    """CEL: an optional field of the spec is as it was, absence included."""
    return f"has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || self.{path} == oldSelf.{path})"


def _count(prefix: str, fields: tuple[str, ...]) -> str:
    return f"[{', '.join(f'has({prefix}.{f})' for f in fields)}].filter(x, x).size()"


SPEC_RULES: tuple[Rule, ...] = (
    Rule(
        "one-model-source",
        ".model.source",
        f"{_count('self.model.source', _SOURCES)} == 1",
        "set exactly one of model.source.pvc, oci, hf and embedded",
        lambda s: len(s.model.source.kinds) == 1,
    ),
    Rule(
        "oci-digest",
        ".model.source.oci.reference",
        "!has(self.model.source.oci) || self.model.source.oci.reference.matches('@sha256:[0-9a-f]{64}$')",
        "model.source.oci.reference must end in @sha256: and 64 hexadecimal digits: every pod gets the same model",
        lambda s: s.model.source.oci is None or bool(re.search(r"@sha256:[0-9a-f]{64}$", s.model.source.oci.reference)),
    ),
    Rule(
        "pvc-path",
        ".model.source.pvc.path",
        "!has(self.model.source.pvc) || !self.model.source.pvc.path.split('/').exists(p, p == '..')",
        "model.source.pvc.path must stay inside the claim: remove '..'",
        lambda s: s.model.source.pvc is None or ".." not in s.model.source.pvc.path.split("/"),
    ),
    Rule(
        "hf-revision",
        ".model.source.hf.revision",
        "!has(self.model.source.hf) || !self.model.source.hf.revision.split('/').exists(p, p == '..' || p == '')",
        "model.source.hf.revision must be a branch, a tag or a commit: remove empty parts and '..'",
        lambda s: s.model.source.hf is None or not {"", ".."} & set(s.model.source.hf.revision.split("/")),
    ),
    Rule(
        "source-kind-immutable",
        ".model.source",
        " && ".join(f"has(self.model.source.{k}) == has(oldSelf.model.source.{k})" for k in _SOURCES),
        "the kind of model.source cannot change: make a new InferenceServer",
    ),
    Rule(
        "cache-immutable",
        ".cache",
        _same("cache"),
        "cache cannot change, because claims of a StatefulSet cannot: make a new InferenceServer",
    ),
    Rule(
        "one-cache",
        ".cache",
        f"!has(self.cache) || {_count('self.cache', ('perReplica', 'claim', 'ephemeral'))} == 1",
        "set exactly one of cache.perReplica, claim and ephemeral, or leave cache out",
        lambda s: s.cache is None or len(s.cache.kinds) == 1,
    ),
    Rule(
        "shared-claim-read-only",
        ".cache.claim.readOnly",
        "!has(self.cache) || !has(self.cache.claim) || self.cache.claim.readOnly || self.replicas <= 1",
        "cache.claim is shared by all pods: with more than one replica set cache.claim.readOnly: true, or use "
        "cache.perReplica",
        lambda s: s.cache is None or s.cache.claim is None or s.cache.claim.read_only or s.replicas <= 1,
    ),
    Rule(
        "memory-known",
        ".resources.hostMemory",
        "has(self.model.preset) || has(self.model.source.embedded) || has(self.resources.hostMemory)",
        "set model.preset, so that memory can be computed, or resources.hostMemory",
        lambda s: s.preset is not None or s.resources.host_memory is not None,
    ),
    Rule(
        "embedded-is-tiny",
        ".model.preset",
        "!has(self.model.source.embedded) || !has(self.model.preset) || self.model.preset == 'tiny'",
        "the embedded model is the preset tiny: leave model.preset out",
        lambda s: s.model.source.embedded is None or s.model.preset in (None, "tiny"),
    ),
    Rule(
        "one-gpu",
        ".gpu",
        f"{_count('self.gpu', ('resourceName', 'claim', 'none'))} <= 1",
        "set at most one of gpu.resourceName, claim and none",
        lambda s: len(s.gpu.kinds) <= 1,
    ),
    Rule(
        "request-timeout",
        ".drain.requestTimeout",
        "duration(self.drain.requestTimeout) <= duration('1h')",
        "drain.requestTimeout must be at most 1h: it is part of the pods' termination grace period",
        lambda s: s.drain.request_timeout <= MAX_REQUEST_TIMEOUT,
    ),
    Rule(
        "own-labels",
        ".pod.labels",
        "!has(self.pod.labels) || self.pod.labels.all(k, !k.startsWith('carousel.dev/') && !(k in ["
        + ", ".join(f"'{label}'" for label in RESERVED_LABELS)
        + "]))",
        "pod.labels must not set the operator's labels: " + ", ".join(RESERVED_LABELS) + " and carousel.dev/*",
        lambda s: not any(k.startswith(f"{names.GROUP}/") or k in RESERVED_LABELS for k in s.pod.labels),
    ),
    Rule(
        "own-annotations",
        ".pod.annotations",
        "!has(self.pod.annotations) || self.pod.annotations.all(k, !k.startsWith('carousel.dev/'))",
        "pod.annotations must not set carousel.dev/*: they belong to the operator",
        lambda s: not any(k.startswith(f"{names.GROUP}/") for k in s.pod.annotations),
    ),
    Rule(
        "own-variables",
        ".pod.env",
        "!has(self.pod.env) || self.pod.env.all(e, !e.name.startsWith('CAROUSEL_'))",
        "pod.env must not set CAROUSEL_*: use limits and engine",
        lambda s: not any(e.name.startswith("CAROUSEL_") for e in s.pod.env),
    ),
    Rule(
        "own-flags",
        ".engine.extraArgs",
        "!has(self.engine.extraArgs) || self.engine.extraArgs.all(a, "
        + " && ".join(f"!a.startsWith('{flag}')" for flag in RESERVED_ARGS)
        + ")",
        "engine.extraArgs must not set what the spec has fields for: " + ", ".join(RESERVED_ARGS),
        lambda s: not any(a.startswith(RESERVED_ARGS) for a in s.engine.extra_args),
    ),
)
NAME_RULE = Rule(
    "name",
    "",
    f"self.metadata.name.size() <= {MAX_NAME} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    f"metadata.name must be at most {MAX_NAME} characters: a letter, then letters, digits and '-' (it names a Service)",
)
