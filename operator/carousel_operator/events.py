"""Kubernetes Events on an InferenceServer: one object per transition, with reasons of names.EVENTS only."""

import hashlib

from carousel_operator import names, timing
from carousel_operator.actions import Notice
from carousel_operator.view import Json


def event(server: Json, notice: Notice, now: float) -> Json:
    """A v1 Event for the InferenceServer object `server`."""
    if notice.reason not in names.EVENTS:
        raise ValueError(f"{notice.reason!r} is not one of names.EVENTS")
    meta = server["metadata"]
    digest = hashlib.sha256(f"{meta.get('uid')}{notice.reason}{notice.message}{now}".encode()).hexdigest()[:16]
    at = timing.rfc3339(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name'][:230]}.{digest}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta.get("uid", ""),
            "resourceVersion": meta.get("resourceVersion", ""),
        },
        "type": "Warning" if notice.warning else "Normal",
        "reason": notice.reason,
        "message": notice.message[:1024],
        "source": {"component": names.FIELD_MANAGER},
        "reportingComponent": names.FIELD_MANAGER,
        "reportingInstance": names.FIELD_MANAGER,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
