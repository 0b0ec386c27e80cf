"""What a lost event would leave unseen: the version of every object, against what the last reconcile left behind.

A look at all objects costs one list a kind, of metadata only, however many InferenceServers there are.
"""

import asyncio
from collections.abc import Mapping

from carousel_operator import kinds, names
from carousel_operator.api import Api, ApiError
from carousel_operator.kinds import Kind
from carousel_operator.observe import Reading
from carousel_operator.view import Json, Key

Versions = frozenset[tuple[str, str, str]]  # kind, name, resourceVersion

WATCHED = (kinds.SERVER, kinds.POD, *kinds.CHILDREN)


def versions(reading: Reading) -> Versions:
    """Of everything around one InferenceServer, as it was read and then written."""
    return frozenset(
        [
            _version(kinds.SERVER, reading.server),
            *(_version(kinds.POD, pod) for pod in reading.pods),
            *(_version(kinds.BY_KIND[kind], child) for (kind, _), child in reading.children.items()),
        ]
    )


async def served(api: Api, namespace: str | None) -> Mapping[Key, Versions]:
    """Of everything in a namespace, None: in all of them. Raises ApiError."""
    lists = await asyncio.gather(*(_list(api, kind, namespace) for kind in WATCHED))
    found: dict[Key, set[tuple[str, str, str]]] = {_key(kinds.SERVER, server): set() for server in lists[0]}
    for kind, objects in zip(WATCHED, lists, strict=True):
        for item in objects:
            if _key(kind, item) in found:
                found[_key(kind, item)].add(_version(kind, item))
    return {key: frozenset(seen) for key, seen in found.items()}


async def _list(api: Api, kind: Kind, namespace: str | None) -> list[Json]:
    try:
        return await api.list_metadata(kind, namespace, "" if kind is kinds.SERVER else names.LABEL_SERVER)
    except ApiError as error:
        if error.status == 404:
            return []  # an optional kind that this cluster lacks
        raise


def _key(kind: Kind, item: Json) -> Key:
    meta = item["metadata"]
    return meta["namespace"], meta["name"] if kind is kinds.SERVER else meta["labels"][names.LABEL_SERVER]


def _version(kind: Kind, item: Json) -> tuple[str, str, str]:
    return kind.kind, item["metadata"]["name"], item["metadata"].get("resourceVersion", "")
