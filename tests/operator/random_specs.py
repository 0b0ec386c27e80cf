"""Random valid specs, drawn from the models' own schema, with the rules across fields kept by construction."""

from typing import Any

from carousel_operator.crd import open_api_schema
from hypothesis import strategies as st

Object = dict[str, Any]
SCHEMA = open_api_schema()["properties"]["spec"]
# Where a pattern is wider than what Kubernetes checks later, a few values that are right.
SAMPLES: dict[str, st.SearchStrategy[Any]] = {
    "nodeSelector": st.just({"zone": "a"}),
    "affinity": st.just(
        {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
                ]
            }
        }
    ),
    "tolerations": st.lists(
        st.sampled_from(
            [
                {"operator": "Exists"},
                {"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"},
                {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
            ]
        ),
        max_size=3,
    ),
    "topologySpreadConstraints": st.lists(
        st.fixed_dictionaries(
            {
                "maxSkew": st.integers(1, 5),
                "topologyKey": st.sampled_from(["a", "b/c"]),
                "whenUnsatisfiable": st.just("ScheduleAnyway"),
            }
        ),
        max_size=2,
        unique_by=lambda c: c["topologyKey"],
    ),
    "env": st.lists(
        st.sampled_from(
            [
                {"name": "A", "value": "1"},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "TRITON_CACHE_DIR", "value": "/tmp/mine"},
            ]
        ),
        max_size=4,
        unique_by=lambda e: e["name"],
    ),
    "envFrom": st.lists(
        st.sampled_from([{"secretRef": {"name": "s"}}, {"prefix": "X_", "configMapRef": {"name": "c"}}]), max_size=2
    ),
    "from": st.lists(
        st.sampled_from([{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]),
        max_size=2,
    ),
    "labels": st.dictionaries(st.sampled_from(["team", "example.com/x"]), st.sampled_from(["", "a", "B-1"])),
    "annotations": st.dictionaries(st.sampled_from(["a", "example.com/x"]), st.text("ab\n", max_size=9)),
    "extraArgs": st.lists(st.sampled_from(["--threads", "4", "--no-access-log"]), max_size=3),
    "selectors": st.lists(st.sampled_from(["device.driver == 'x'", "true"]), max_size=2, unique=True),
    "resourceName": st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu"]),
    "servedName": st.sampled_from(["chat", "Qwen/x:1", "a.b_c"]),
    "repo": st.sampled_from(["a/b", "Some-Body/Some.Model_1"]),
    "revision": st.sampled_from(["main", "refs/pr/3", "0f" * 20]),
    "path": st.sampled_from(["", "a", "a/b.c"]),
    "requestTimeout": st.sampled_from(["0s", "2m", "59m59s", "1h"]),
    "reference": st.sampled_from(["localhost/a/b:1", "registry.example/m@sha256:" + "ab" * 32]),
}
DURATIONS = st.sampled_from(["1s", "1.5s", "250ms", "90s", "10m", "1h30m", "24h"])
BYTES = st.one_of(st.integers(2**27, 2**36), st.sampled_from(["256Mi", "1.5Gi", "2G", "500M", "8Gi"]))
CPUS = st.one_of(st.integers(1, 64), st.sampled_from(["500m", "1.5", "12"]))
TEXT = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)


@st.composite
def specs(draw: st.DrawFn) -> Object:
    """A spec that the API server accepts and whose children it accepts too."""
    found: Object = draw(_object(SCHEMA))
    source = draw(st.sampled_from(["pvc", "oci", "hf", "embedded"]))
    found["model"]["source"] = draw(_object(SCHEMA["properties"]["model"]["properties"]["source"], {source}))
    if source == "oci":
        found["model"]["source"]["oci"]["reference"] = "registry.example/m@sha256:" + "ab" * 32
    found["model"]["preset"] = "tiny"
    found["gpu"] = draw(_one_of(SCHEMA["properties"]["gpu"]))
    if "none" in found["gpu"]:
        found.get("engine", {}).pop("weights", None)  # rounded weights are the GPU's
    if draw(st.booleans()):
        found["cache"] = draw(_one_of(SCHEMA["properties"]["cache"], required=True))
        if "claim" in found["cache"]:
            found["cache"]["claim"]["readOnly"] = True
    else:
        found.pop("cache", None)
    found.get("resources", {}).pop("hostMemory", None)
    return found


def _one_of(schema: Object, *, required: bool = False) -> st.SearchStrategy[Object]:
    choices = [_object(schema, {name}) for name in schema["properties"]]
    return st.one_of(*choices, *([] if required else [st.just({})]))


@st.composite
def _object(draw: st.DrawFn, schema: Object, only: set[str] | None = None) -> Object:
    found = {}
    required = set(schema.get("required", ())) if only is None else only
    for name, field in schema.get("properties", {}).items():
        if name in required or (only is None and draw(st.booleans())):
            found[name] = draw(SAMPLES[name] if name in SAMPLES else _value(field))
    return found


def _value(field: Object) -> st.SearchStrategy[Any]:
    pattern = field.get("pattern", "")
    if "enum" in field:
        return st.sampled_from(field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return CPUS if "m)$" in pattern else BYTES
    if "ms|s|m|h" in pattern:
        return DURATIONS
    kind = field["type"]
    if kind == "boolean":
        return st.booleans()
    if kind == "integer":
        step = field.get("multipleOf", 1)
        low, high = field.get("minimum", 0), min(field.get("maximum", 8192), 8192)
        return st.integers(-(-low // step), high // step).map(lambda n: n * step)
    if kind == "array":
        unique = field.get("x-kubernetes-list-type") == "set"
        return st.lists(_value(field["items"]), min_size=field.get("minItems", 0), max_size=2, unique=unique)
    return _object(field) if kind == "object" else TEXT
