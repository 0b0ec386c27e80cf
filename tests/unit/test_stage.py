"""What a server says of itself between its first request and the last expert on the GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
from carousel_server.admin_state import AdminState
from carousel_server.identity import Identity
from carousel_server.limits import EngineSettings, Limits
from carousel_server.memory_plan import plan
from carousel_server.presets import PRESETS
from carousel_server.stage import Stage


def serving(**of_the_core: Any) -> Stage:
    planned = plan(PRESETS["tiny"], Limits(), EngineSettings(), device="cpu")
    stage = Stage(Identity(0, bytes), planned, "1")
    state: AdminState = stage.state().model_copy(
        update={"phase": "serving", "progress": 1.0, "message": ""} | of_the_core
    )
    stage.core = SimpleNamespace(state=lambda: state, alive=True)  # type: ignore[assignment]
    stage.card = SimpleNamespace()  # type: ignore[assignment]
    return stage


def test_a_server_that_still_loads_experts_serves_and_says_how_far_it_is() -> None:
    stage = serving()
    stage.progress, stage.message = 0.4, "experts of layer 7 of 49"
    assert stage.health() == (200, {"status": "serving", "progress": 0.4, "message": "experts of layer 7 of 49"})
    stage.progress, stage.message = 1.0, "every expert"
    assert stage.health() == (200, {"status": "serving", "progress": 1.0, "message": ""})


def test_what_failed_is_said_before_how_far_the_experts_are() -> None:
    stage = serving(phase="failed", message="the device is lost")
    stage.progress, stage.message = 0.4, "experts of layer 7 of 49"
    status, body = stage.health()
    assert (status, body["message"]) == (503, "the device is lost")


@pytest.mark.parametrize("share", [0.0, 0.99])
def test_before_it_serves_it_is_loading(share: float) -> None:
    stage = serving()
    stage.core, stage.progress, stage.message = None, share, "dense weights"
    assert stage.health() == (503, {"status": "loading", "progress": share, "message": "dense weights"})
