"""The API server's bad days: refusals, conflicts, throttling and slowness, at every request of a life with a drain."""

import asyncio
from typing import Any

import pytest
from carousel_operator import kinds
from carousel_operator.api import Api, ApiError
from carousel_operator.process import Options, Process

from tests.operator.apiserver import ApiServer
from tests.operator.driving import Drive, play

pytestmark = pytest.mark.api


class FaultyApi(Api):
    """Refuses every n-th request with one of these answers; every request is made at last."""

    def __init__(self, inner: Api, statuses: tuple[int, ...], every: int, *, done: bool) -> None:
        self._client, self._count = inner._client, lambda kind, verb: None
        self._statuses, self._every, self._done, self._calls = statuses, every, done, 0
        self.faults = 0

    async def _call(self, verb: str, path: str, *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        if self._calls % self._every == 0:
            status = self._statuses[self.faults % len(self._statuses)]
            self.faults += 1
            if self._done and verb != "GET":
                await super()._call(verb, path, *args, **kwargs)  # it was carried out, and the answer got lost
            raise ApiError(verb, path, status, "a fault of this test", 0.0)
        return await super()._call(verb, path, *args, **kwargs)


@pytest.mark.parametrize("done", [False, True], ids=["refused", "carried_out_but_the_answer_lost"])
def test_d43_a_drain_goes_through_although_requests_fail_on_the_way(live: ApiServer, done: bool) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(replicas=2)
        await drive.until(drive.ready)
        before = await drive.uids()
        boots = {server.boot_id for server in drive.fake.by_name.values()}
        faulty = FaultyApi(drive.api, (409, 429, 500, 503, 0), 23, done=done)  # a reconcile makes 9 to 25 requests
        reconciler = drive.reconciler
        reconciler.api = reconciler.observer._api = reconciler.applier.api = faulty
        await drive.apply(replicas=2, restart={"id": "a"})
        await drive.until(lambda: drive.replaced(before))
        assert faulty.faults > 5
        assert sorted(await drive.ledger()) == sorted((boot, "restart") for boot in boots)
        status = await drive.status()
        assert [(e["cause"], e["boots"]) for e in status["sessions"]["lost"]] == [("restart", 2)]

    play(live, act)


@pytest.mark.parametrize("status", [409, 410, 422, 429, 500, 503, 0])
def test_a_failed_reconcile_is_tried_again_with_back_off_and_disturbs_no_other(status: int) -> None:
    calls: list[tuple[str, str]] = []

    class Failing:
        memories: dict[Any, Any] = {}  # noqa: RUF012

        async def __call__(self, key: tuple[str, str], *, changed: bool) -> float | None:
            calls.append(key)
            if key[1] == "bad":
                raise ApiError("GET", "/x", status, "no", 0.0)
            return None

    async def scene() -> None:
        from carousel_operator.metrics import Metrics

        metrics = Metrics()
        process = Process(Options(workers=1), Failing(), metrics)  # type: ignore[arg-type]
        worker = asyncio.create_task(process.work())
        process.enqueue(("ns", "bad"))
        process.enqueue(("ns", "good"))
        await asyncio.sleep(1.5)
        worker.cancel()
        assert calls.count(("ns", "bad")) == 2
        assert calls.count(("ns", "good")) == 1
        assert metrics.errors.labels(f"api-{status}")._value.get() == 2

    asyncio.run(scene())


def test_a_slow_api_server_costs_time_and_nothing_else(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        class Slow(Api):
            def __init__(self, inner: Api) -> None:
                self._client, self._count = inner._client, lambda kind, verb: None

            async def _call(self, *args: Any, **kwargs: Any) -> Any:
                await asyncio.sleep(0.15)
                return await super()._call(*args, **kwargs)

        slow = Slow(drive.api)
        drive.reconciler.api = drive.reconciler.observer._api = drive.reconciler.applier.api = slow
        await drive.apply()
        await drive.until(drive.ready)

    play(live, act)


def test_an_answer_that_does_not_come_is_an_error_of_its_own(live: ApiServer) -> None:
    async def scene() -> None:
        api = await Api.connect(str(live.kubeconfig))
        api.configuration.host = "https://127.0.0.1:1"
        with pytest.raises(ApiError) as caught:
            await api.get(kinds.POD, "default", "x")
        assert (caught.value.status, caught.value.passing) == (0, True)
        await api.close()

    asyncio.run(scene())
