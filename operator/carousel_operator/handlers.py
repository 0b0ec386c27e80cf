"""kopf's part: watches. Every handler only puts a key into the queue; none returns, patches or stores anything.

Only `on.event` is used: kopf then writes neither a finalizer nor an annotation on any object. Every handler is a
coroutine: kopf runs plain functions in threads, and the queue belongs to the event loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import kopf

from carousel_operator import kinds, names
from carousel_operator.kinds import Kind
from carousel_operator.view import Key

Enqueue = Callable[[Key, bool], None]  # key, whether the user changed the spec
NodeChanged = Callable[[str], None]

log = logging.getLogger("carousel.operator")

FIRST_RESTART, LAST_RESTART = 0.5, 60.0  # seconds until the watches start again
WATCHED = (kinds.STATEFUL_SET, kinds.POD, kinds.SERVICE, kinds.CONFIG_MAP, kinds.SECRET, kinds.BUDGET)


def registry(enqueue: Enqueue, node_changed: NodeChanged | None) -> kopf.OperatorRegistry:
    """The handlers of one operator. Without `node_changed`, nodes are not watched (no permission in a namespace)."""
    found = kopf.OperatorRegistry()
    generations: dict[Key, int] = {}
    # A registry of one's own has no login: both read what the API client reads, again whenever a token is refused.
    for login in (kopf.login_with_service_account, kopf.login_with_kubeconfig):
        kopf.on.login(id=login.__name__, registry=found, errors=kopf.ErrorsMode.IGNORED)(login)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=found)  # type: ignore[untyped-decorator, unused-ignore]
    async def server_changed(type: str | None, meta: Mapping[str, Any], **_: Any) -> None:
        key = (meta["namespace"], meta["name"])
        if type == "DELETED":
            generations.pop(key, None)
        generation = meta.get("generation", 0)
        # A status written by this operator comes back as an event of the same generation; annotations matter too,
        # so it is reconciled all the same, which at rest writes nothing.
        changed = generations.get(key) != generation
        generations[key] = generation
        enqueue(key, changed)

    for kind in WATCHED:
        _watch_children(found, kind, enqueue)
    if node_changed is not None:
        _watch_nodes(found, node_changed)
    return found


async def watch(
    found: kopf.OperatorRegistry, chosen: kopf.OperatorSettings, namespaces: Sequence[str], liveness: str | None = None
) -> None:
    """Run kopf until a signal comes. An error that it does not survive costs a new start, with a new list of all.

    kopf reconnects by itself after a 410 or a lost connection; any other error inside a watch ends it.
    """
    delay = FIRST_RESTART
    while True:
        began = time.monotonic()
        try:
            await kopf.operator(
                registry=found,
                settings=chosen,
                standalone=True,
                clusterwide=not namespaces,
                namespaces=list(namespaces),
                liveness_endpoint=liveness,
            )
            return
        except Exception as error:
            delay = FIRST_RESTART if time.monotonic() - began > LAST_RESTART else min(delay * 2, LAST_RESTART)
            log.error("the watches ended (%s) and start again in %.0f s", error, delay)
            await asyncio.sleep(delay)


def settings(*, namespaced: bool) -> kopf.OperatorSettings:
    """kopf's settings: no posting below WARNING, server-side label filters, and no scanning within namespaces."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False  # events.py posts on transitions only
    chosen.peering.standalone = True
    chosen.scanning.disabled = namespaced
    chosen.watching.server_timeout = 300
    chosen.watching.connect_timeout = 10
    chosen.watching.inactivity_timeout = 70
    chosen.networking.request_timeout = 30
    for kind in WATCHED:
        chosen.watching.label_selectors[_selector(kind)] = names.LABEL_SERVER
    return chosen


def _watch_children(found: kopf.OperatorRegistry, kind: Kind, enqueue: Enqueue) -> None:
    group, _, version = kind.api_version.rpartition("/")

    labels = {names.LABEL_SERVER: kopf.PRESENT}

    @kopf.on.event(  # type: ignore[untyped-decorator, unused-ignore]
        group, version, kind.plural, id=f"{kind.plural}_changed", labels=labels, registry=found
    )
    async def child_changed(meta: Mapping[str, Any], **_: Any) -> None:
        enqueue((meta["namespace"], meta["labels"][names.LABEL_SERVER]), False)


def _watch_nodes(found: kopf.OperatorRegistry, node_changed: NodeChanged) -> None:
    known: dict[str, tuple[bool, bool]] = {}

    @kopf.on.event("", "v1", "nodes", registry=found)  # type: ignore[untyped-decorator, unused-ignore]
    async def node_event(type: str | None, body: Mapping[str, Any], **_: Any) -> None:
        name = body["metadata"]["name"]
        conditions = (body.get("status") or {}).get("conditions") or ()
        lost = any(c.get("type") == "Ready" and c.get("status") == "Unknown" for c in conditions)
        now = (bool((body.get("spec") or {}).get("unschedulable")), lost)
        if type == "DELETED" or known.get(name) != now:
            node_changed(name)
        known[name] = now


def _selector(kind: Kind) -> tuple[str, str, str]:
    group, _, version = kind.api_version.rpartition("/")
    return group, version, kind.plural
