"""The status of a situation, for tests that look at one of its parts."""

from typing import Any

from carousel_operator import status, transitions
from carousel_operator.intent import Intent
from carousel_operator.plan import plan
from carousel_operator.resource import InferenceServer
from carousel_operator.view import Observed
from carousel_operator.want import Want

from tests.operator.scene import NOW

OBJECT = {
    "metadata": {"name": "chat", "namespace": "default", "uid": "u", "generation": 3},
    "spec": {"model": {"source": {"embedded": {}}}, "image": {"reference": "r/i:1"}},
}


def rendered(wanted: Want, observed: Observed, now: float = NOW, old: dict[str, Any] | None = None) -> dict[str, Any]:
    """The status of one situation."""
    made = Intent(wanted, None, None)
    obj = InferenceServer.parse(
        {**OBJECT, "spec": {**OBJECT["spec"], "resources": {"hostMemory": "8Gi"}}, "status": old or {}}
    )
    return status.render(obj, made, observed, plan(wanted, observed, now), now).status


def condition(found: dict[str, Any], kind: str) -> tuple[str, str, str]:
    """status, reason and message of a condition."""
    one = transitions.condition(found, kind)
    return one["status"], one["reason"], one["message"]
