"""What is read: pods, nodes and configuration as Kubernetes gives them, to typed views."""

import base64
from typing import Any

import pytest
from carousel_operator import config_map, names, observe, pods
from carousel_operator.ledger import TERMINATING
from carousel_operator.observe import Reading
from carousel_operator.resource import InferenceServer
from carousel_operator.view import Exit, Mark
from carousel_server.admin_state import PeersUpdate
from carousel_server.limits import Limits

from tests.operator.scene import state

OBJECT: dict[str, Any] = {
    "metadata": {"name": "chat", "namespace": "default", "uid": "u", "generation": 3},
    "spec": {"model": {"source": {"embedded": {}}}, "image": {"reference": "r/i:1"}},
}


def raw(container: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """A pod whose server container has this status."""
    found = {"name": names.CONTAINER, "restartCount": 0, "started": True, "state": {"running": {}}} | (container or {})
    return {
        "metadata": {
            "name": "chat-3",
            "uid": "u3",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {names.LABEL_REVISION: "abc"},
            "annotations": {},
        },
        "spec": {"nodeName": "node-a", "containers": [{"name": names.CONTAINER}]},
        "status": {"phase": "Running", "podIP": "10.0.0.3", "containerStatuses": [found], **status},
    }


def test_a_serving_pod_is_read() -> None:
    view = pods.view(raw(conditions=[{"type": "Ready", "status": "True"}]), state(3))
    assert (view.name, view.uid, view.ordinal, view.revision, view.node, view.ip) == (
        *("chat-3", "u3", 3, "abc", "node-a", "10.0.0.3"),
    )
    assert (view.ready, view.running, view.started, view.created) == (True, True, True, 1767225600.0)


def test_an_empty_pod_is_a_pod_that_holds_nothing() -> None:
    view = pods.view({"metadata": {"name": "chat-0"}})
    assert (view.ready, view.running, view.started, view.nothing_to_drain) == (False, False, False, True)


def test_a_container_killed_for_memory_is_read_from_its_last_state() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:10Z"}}
    view = pods.view(raw({"restartCount": 2, "lastState": ended}))
    assert view.last_exit == Exit(137, "OOMKilled", 1767225610.0)
    assert view.last_exit.out_of_memory
    assert view.restarts == 2


def test_the_end_of_the_log_of_a_container_that_ended_is_kept() -> None:
    ended = {"terminated": {"exitCode": 78, "reason": "Error", "message": "plan: 9 GiB of 8 GiB\n"}}
    assert pods.view(raw({"state": ended})).last_exit == Exit(78, "Error", None, "plan: 9 GiB of 8 GiB")


@pytest.mark.parametrize(
    ("statuses", "reason", "init"),
    [
        (
            {"containerStatuses": [{"name": "server", "state": {"waiting": {"reason": "ErrImagePull"}}}]},
            "ErrImagePull",
            False,
        ),
        (
            {
                "initContainerStatuses": [
                    {"name": "fetch-model", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
                ],
                "containerStatuses": [{"name": "server", "state": {"waiting": {"reason": "PodInitializing"}}}],
            },
            "CrashLoopBackOff",
            True,
        ),
    ],
)
def test_the_waiting_container_that_says_why_is_found(statuses: dict[str, Any], reason: str, init: bool) -> None:
    view = pods.view(raw(**statuses))
    assert view.waiting is not None
    assert (view.waiting.reason, view.waiting.init) == (reason, init)


def test_a_busy_init_container_is_no_reason_to_wait() -> None:
    busy = [{"name": "fetch-model", "state": {"running": {}}}]
    main = [{"name": "server", "state": {"waiting": {"reason": "PodInitializing"}}}]
    view = pods.view(raw(initContainerStatuses=busy, containerStatuses=main))
    assert (view.waiting, view.initialising) == (None, True)


def test_the_scheduler_s_words_are_kept() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
    assert pods.view(raw(conditions=[condition])).unschedulable == "0/2 nodes"


@pytest.mark.parametrize(
    ("status", "evicted"),
    [
        ({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]}, True),
        ({"reason": "Evicted", "phase": "Failed"}, True),
        ({}, False),
    ],
)
def test_an_eviction_is_seen(status: dict[str, Any], evicted: bool) -> None:
    assert pods.view(raw(**status)).evicted is evicted


def test_c32_an_unhealthy_device_is_named() -> None:
    device = {"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-7", "health": "Unhealthy"}]}
    assert pods.view(raw({"allocatedResourcesStatus": [device]})).unhealthy_devices == ("GPU-7",)


def test_a_resize_is_read_in_bytes_and_thousandths() -> None:
    obj = raw({"resources": {"requests": {"cpu": "1", "memory": "8Gi"}}})
    obj["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1500m", "memory": "10737418240"}}
    condition = {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "message": "node has 9Gi"}
    obj["status"]["conditions"] = [condition]
    view = pods.view(obj).resize
    assert view is not None
    assert (view.wanted, view.applied) == (
        {"cpu": 1500, "memory": 10 * 2**30},
        {"cpu": 1000, "memory": 8 * 2**30},
    )
    assert (view.pending, view.message) == ("Infeasible", "node has 9Gi")


def test_a_pod_that_reports_no_sizes_is_not_resized() -> None:
    assert pods.view(raw()).resize is None


def test_a_mark_is_read_from_its_annotation() -> None:
    obj = raw()
    obj["metadata"]["annotations"][names.ANNOTATION_DRAIN] = Mark("cordon", 5.0, None).dump()
    assert pods.view(obj).mark == Mark("cordon", 5.0, None)


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, False),
        ({"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_a_pod_that_would_come_back_to_a_cordoned_node_is_known(toleration: dict[str, str], tolerates: bool) -> None:
    obj = raw()
    obj["spec"]["tolerations"] = [toleration]
    assert pods.view(obj).tolerates_cordon is tolerates


def test_a_node_is_cordoned_or_lost() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    silent = {**ready, "status": "Unknown"}
    cordoned = pods.node_view(
        {"metadata": {"name": "n"}, "spec": {"unschedulable": True}, "status": {"conditions": [ready]}}
    )
    gone = pods.node_view({"metadata": {"name": "n"}, "status": {"conditions": [silent]}})
    assert (cordoned.cordoned, cordoned.lost_since) == (True, None)
    assert (gone.cordoned, gone.lost_since) == (False, 1767225600.0)


@pytest.mark.parametrize(
    ("text", "value"), [("250m", 0.25), ("1", 1.0), ("8Gi", 8 * 2.0**30), ("1k", 1000.0), ("x", 0.0), ("", 0.0)]
)
def test_quantities_are_read(text: str, value: float) -> None:
    assert pods.quantity(text) == value


def test_the_boots_of_the_status_are_remembered_with_their_state() -> None:
    status = {
        "pods": [{"name": "chat-1", "uid": "u", "bootId": "b", "sessions": 2, "state": TERMINATING}, {"name": "x-2"}]
    }
    (boot,) = observe.seen_boots(status)
    assert (boot.pod, boot.ordinal, boot.boot_id, boot.sessions, boot.state) == ("chat-1", 1, "b", 2, TERMINATING)


def test_the_limits_of_the_configmap_are_read_back_as_they_were_written() -> None:
    limits = Limits.model_validate({"queuedRequests": 7, "sessions": {"bytes": "64Mi"}})
    data = config_map.data(limits, 9, PeersUpdate(generation=4))
    assert observe.limits_of(data) == (9, limits)


@pytest.mark.parametrize("data", [{}, {"server.toml": "generation = x"}, {"server.toml": "[limits\n"}])
def test_a_configmap_that_cannot_be_read_has_no_limits(data: dict[str, str]) -> None:
    assert observe.limits_of(data) == (0, None)


def test_the_token_is_read_from_the_secret() -> None:
    secret = {"data": {"token": base64.b64encode(b"abc").decode()}}
    reading = Reading(OBJECT, children={("Secret", "chat-admin"): secret})
    assert reading.token == "abc"
    assert Reading(OBJECT).token == ""


def test_what_the_spec_names_and_the_cluster_lacks_is_told_by_name() -> None:
    env = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "extra", "key": "used"}}}]
    optional = [{"name": "Y", "valueFrom": {"secretKeyRef": {"name": "maybe", "key": "k", "optional": True}}}]
    obj = {**OBJECT, "spec": {**OBJECT["spec"], "pod": {"env": env + optional}}}
    spec = InferenceServer.parse(obj).spec
    absent = Reading(obj, data={("Secret", "extra"): None, ("Secret", "maybe"): None})
    assert observe.missing(absent, spec) == ("Secret extra",)
    partly = Reading(obj, data={("Secret", "extra"): {"other": "x"}, ("Secret", "maybe"): {}})
    assert observe.missing(partly, spec) == ("Secret extra key used",)
    assert observe.missing(Reading(obj, claims={"models": False}), spec) == ("PersistentVolumeClaim models",)


def test_pods_of_the_view_are_in_the_order_of_their_ordinals() -> None:
    second, first = raw(), raw()
    first["metadata"] = {**first["metadata"], "name": "chat-0", "uid": "u0"}
    stranger = raw()
    stranger["metadata"] = {**stranger["metadata"], "name": "debug", "uid": "x"}
    reading = Reading(OBJECT, pods=[second, stranger, first])
    found = observe.observed(reading, InferenceServer.parse(OBJECT))
    assert [view.name for view in found.pods] == ["chat-0", "chat-3"]
    assert found.statefulset_replicas is None
