"""What a change of the spec does: for any two specs, which fields differ and the class of each. Pure.

The same table decides the revision (revision.py), so a field is of class Restart exactly when it changes the revision.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from carousel_operator.resource import InferenceServerSpec

Class = Literal["None", "Hot", "Resize", "Restart"]
ORDER: Final[tuple[Class, ...]] = ("None", "Hot", "Resize", "Restart")

# The longest path that is a prefix of a field decides.
CLASSES: Final[Mapping[str, Class]] = {
    "replicas": "None",
    "suspend": "None",
    "networkPolicy": "None",
    "monitoring": "None",
    "service": "None",
    "model.source.hf.tokenSecretRef": "None",
    "restart.reason": "None",
    "limits": "Hot",
    "drain": "Hot",
    "resources.cpu": "Resize",
    "resources.hostMemory": "Resize",
    "resources.sharedMemory": "Restart",
    "resources.ephemeralStorage": "Restart",
    "model": "Restart",
    "image": "Restart",
    "engine": "Restart",
    "gpu": "Restart",
    "pod": "Restart",
    "startup": "Restart",
    "restart.id": "Restart",
    "auth": "Restart",
    "cache": "Restart",
}


@dataclass(frozen=True)
class Change:
    """Fields that differ, in the order of the spec, and the strongest of their classes."""

    class_: Class
    fields: tuple[str, ...]

    @property
    def classes(self) -> dict[str, Class]:
        """The class of each field."""
        return {path: class_of(path) for path in self.fields}

    def of_class(self, class_: Class) -> tuple[str, ...]:
        """The fields of one class."""
        return tuple(path for path in self.fields if class_of(path) == class_)

    def __bool__(self) -> bool:
        return bool(self.fields)


def class_of(path: str) -> Class:
    """Class of a field by its path below spec. Raises KeyError for a path that no rule covers."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        found = CLASSES.get(".".join(parts[:length]))
        if found is not None:
            return found
    raise KeyError(path)


def classify(old: InferenceServerSpec, new: InferenceServerSpec) -> Change:
    """What changing `old` into `new` does. A default and the same value written out are equal."""
    before, after = dict(leaves(old.dump())), dict(leaves(new.dump()))
    paths = [p for p in [*before, *(p for p in after if p not in before)] if before.get(p) != after.get(p)]
    # A block that appears or goes is told by its fields, not also by itself as an empty one.
    fields = tuple(p for p in paths if not any(q.startswith(f"{p}.") for q in paths))
    strongest = max((class_of(p) for p in fields), key=ORDER.index, default=ORDER[0])
    return Change(strongest, fields)


def leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths to values; lists, free-form maps of the pod and empty objects are values."""
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, dict) and item and path not in _MAPS:
            yield from leaves(item, f"{path}.")
        else:
            yield path, item


_MAPS: Final = frozenset({"pod.nodeSelector", "pod.labels", "pod.annotations", "service.annotations"})
