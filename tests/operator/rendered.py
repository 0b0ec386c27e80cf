"""Parts of the children of the smallest spec with changes, for tests that look at one of them."""

from typing import Any

from carousel_operator import workload
from carousel_server.admin_state import LostBoot, Peer, PeersUpdate

from tests.operator.specs import planned, server

Object = dict[str, Any]
PEERS = PeersUpdate(
    generation=7,
    peers=[Peer(ordinal=0, address="chat-0.chat-pods.default.svc:8000", boot_id="b1", accepting=True)],
    lost=[LostBoot(ordinal=0, boot_id="b0", cause="rollout", at="2026-01-01T00:00:00Z")],
)


def children(*changes: Object, replicas: int | None = 1, **options: Any) -> dict[str, Object]:
    """Children by kind and name, of the smallest spec with changes."""
    found = server(*changes)
    given: dict[str, Any] = {"peers": PEERS, "limits_generation": 3, **options}
    made = workload.children(found, replicas=replicas, plan=planned(found), **given)
    return {f"{child['kind']}/{child['metadata']['name']}": child for child in made}


def pod_spec(*changes: Object) -> Object:
    """The pod template's spec."""
    found: Object = children(*changes)["StatefulSet/chat"]["spec"]["template"]["spec"]
    return found


def container(*changes: Object) -> Object:
    """The server's container."""
    found: Object = pod_spec(*changes)["containers"][0]
    return found


def mounts(of: Object) -> dict[str, Object]:
    return {mount["mountPath"]: mount for mount in of["volumeMounts"]}


def volume(of: Object, name: str) -> Object:
    found: Object = next(volume for volume in of["volumes"] if volume["name"] == name)
    return found


def arguments(*changes: Object) -> dict[str, str]:
    args = container(*changes)["args"]
    return dict(zip(args[::2], args[1::2], strict=False))
