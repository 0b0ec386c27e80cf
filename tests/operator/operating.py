"""The operator's whole process inside a test: watches, queue and reconciles against a real API server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from carousel_operator.metrics import Metrics
from carousel_operator.process import Options, run
from prometheus_client import Counter

from tests.operator.driving import ADMIN_PORT


@asynccontextmanager
async def operating(kubeconfig: Path | str, home: str, namespaces: Sequence[str] = ()) -> AsyncIterator[Metrics]:
    """An operator that lives in namespace `home` and watches `namespaces`, none: all of them; its metrics."""
    metrics = Metrics()
    options = Options(
        namespaces=namespaces,
        kubeconfig=str(kubeconfig),
        health_address="",
        metrics_port=0,
        operator_namespace=home,
        admin_port=ADMIN_PORT,
    )
    process = asyncio.create_task(run(options, metrics))
    try:
        yield metrics
    finally:
        process.cancel()
        await asyncio.gather(process, return_exceptions=True)


def total(counter: Counter) -> float:
    """Sum over all labels."""
    return sum(s.value for family in counter.collect() for s in family.samples if s.name.endswith("_total"))


def kinds_of(counter: Counter) -> set[str]:
    """Values of the label `kind` that were counted."""
    return {s.labels["kind"] for family in counter.collect() for s in family.samples if s.name.endswith("_total")}
