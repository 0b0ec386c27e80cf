"""A model that is being downloaded by the init container, as the operator tells of it."""

from dataclasses import replace
from typing import Any

from carousel_operator import pods
from carousel_operator.actions import PushLimits, PushPeers
from carousel_operator.diagnosis import diagnose
from carousel_operator.plan import plan
from carousel_operator.view import Observed, PodView
from carousel_operator.want import Want
from carousel_server.fetch_cli import Report

POD = PodView(name="chat-0", uid="u", ordinal=0, created=0.0, ip="10.0.0.1", initialising=True, revision="r")


def test_the_pod_is_asked_as_soon_as_its_init_container_runs() -> None:
    running: dict[str, Any] = {"initContainerStatuses": [{"state": {"running": {}}}]}
    assert pods.has_process({"phase": "Pending", "podIP": "10.0.0.1", **running})
    assert not pods.has_process({"phase": "Pending", "podIP": "10.0.0.1"})
    assert not pods.has_process({"phase": "Pending", **running})
    assert pods.has_process({"phase": "Running"})


def test_the_message_has_the_progress_of_the_download() -> None:
    report = Report("owner/model")
    report(43, 100, "model.safetensors")
    found = diagnose(replace(POD, admin=report.state()), None, 10.0)
    assert (found.state, found.reason, found.progress) == ("DownloadingModel", "DownloadingModel", 43)
    assert found.message == "chat-0: downloading owner/model: 43% (43 B of 100 B)"


def test_a_download_that_does_not_answer_is_told_without_a_number() -> None:
    found = diagnose(POD, None, 10.0)
    assert (found.reason, found.progress) == ("DownloadingModel", None)


def test_nothing_is_pushed_to_a_pod_that_only_downloads() -> None:
    observed = Observed(pods=(replace(POD, admin=Report("owner/model").state()),), statefulset_replicas=1)
    made = plan(Want(name="chat", revision="r", limits_generation=5), observed, 10.0)
    assert not [action for action in (*made.before, *made.after) if isinstance(action, PushLimits | PushPeers)]


def init_state(**state: object) -> dict[str, object]:
    """A pod whose init container is in this state, after an exit with 66."""
    ended = {"terminated": {"exitCode": 66, "reason": "Error", "message": "carousel-server: no owner/other"}}
    container = {"name": "fetch-model", "restartCount": 3, "state": state, "lastState": ended}
    return {
        "metadata": {"name": "chat-0"},
        "spec": {"nodeName": "n"},
        "status": {"phase": "Pending", "podIP": "10.0.0.1", "initContainerStatuses": [container]},
    }


def test_a_download_that_failed_is_model_missing_with_the_reason_it_gave() -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off"}
    found = diagnose(pods.view(init_state(waiting=waiting)), None, 10.0)
    assert (found.state, found.reason) == ("Failed", "ModelMissing")
    assert found.message == "chat-0 exited with 66 (ModelMissing), 3 restarts: carousel-server: no owner/other"


def test_a_download_that_is_tried_again_is_a_download() -> None:
    found = diagnose(pods.view(init_state(running={"startedAt": "2026-01-01T00:00:00Z"})), None, 10.0)
    assert found.reason == "DownloadingModel"
