"""Random valid specs and the samples, all at once, under a running operator and its watches on a real API server."""

import asyncio
from collections.abc import Mapping

import pytest
from carousel_operator import kinds, names, resync
from carousel_operator.api import Api
from carousel_operator.metrics import Metrics
from carousel_operator.samples import SAMPLES
from carousel_operator.view import Json, Key
from hypothesis import HealthCheck, Phase, given, settings

from tests.operator.apiserver import ApiServer
from tests.operator.driving import NAMESPACE, eventually
from tests.operator.operating import kinds_of, operating, total
from tests.operator.random_specs import specs

pytestmark = pytest.mark.api
SPECS, REST_SECONDS = 200, 60
SPACES = tuple(f"random-{n}" for n in range(4))


def drawn(count: int) -> list[Json]:
    """As many random specs."""
    found: list[Json] = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(specs())
    def collect(spec: Json) -> None:
        found.append(spec)

    collect()
    return found


async def look(api: Api) -> Mapping[Key, resync.Versions]:
    """The version of every object in the namespaces of this test."""
    return {key: seen for space in SPACES for key, seen in (await resync.served(api, space)).items()}


def test_d52_200_random_valid_specs_are_applied_and_then_nothing_is_written_for_a_minute(api: ApiServer) -> None:
    wanted = {(SPACES[n % len(SPACES)], f"r{n}"): spec for n, spec in enumerate(drawn(SPECS))}
    assert len(wanted) == SPECS
    wanted |= {(SPACES[0], sample.name): sample.spec for sample in SAMPLES}  # among them every optional field

    async def scene() -> None:
        client = await Api.connect(str(api.kubeconfig))
        for space in SPACES:
            await client.create(NAMESPACE, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
        for (space, name), spec in wanted.items():
            body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": spec}
            await client.create(kinds.SERVER, space, body)
        try:
            async with operating(api.kubeconfig, SPACES[0], SPACES) as metrics:
                await eventually(lambda: _carried_out(client, len(wanted)), 150)
                await eventually(lambda: _quiet(metrics), 60)
                for server in await _servers(client):
                    ready = next(c for c in server["status"]["conditions"] if c["type"] == names.READY)
                    assert ready["reason"] not in ("InvalidSpec", "LimitsDoNotFit"), (ready, server["spec"])
                before, versions = total(metrics.writes), await look(client)
                await asyncio.sleep(REST_SECONDS)
                assert total(metrics.writes) == before
                assert await look(client) == versions
                assert not [kind for kind in kinds_of(metrics.errors) if kind.startswith("api-4")]
        finally:
            await client.close()

    try:
        asyncio.run(scene())
    finally:  # or the operators of later tests would have them, too
        for space in SPACES:
            api.kubectl("delete", "infsrv", "--all", "-n", space)


async def _servers(client: Api) -> list[Json]:
    return [server for space in SPACES for server in await client.list_all(kinds.SERVER, space)]


async def _carried_out(client: Api, count: int) -> bool:
    """Every object has a StatefulSet and a status of its generation."""
    sets = [len(await client.list_metadata(kinds.STATEFUL_SET, space)) for space in SPACES]
    if sum(sets) < count:
        return False
    return all((server.get("status") or {}).get("observedGeneration") == 1 for server in await _servers(client))


async def _quiet(metrics: Metrics) -> bool:
    """Nothing is written for five seconds."""
    before = total(metrics.writes)
    await asyncio.sleep(5)
    return total(metrics.writes) == before
