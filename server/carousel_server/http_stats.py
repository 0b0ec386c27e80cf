"""What the client port measures: outcomes, waiting, first and following output, and the plan's bytes. Names are stable.

The core's counters are in stats.py; `/metrics` shows both.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from carousel_server.memory_plan import MemoryPlan

WAIT_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
GAP_SECONDS: Final = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 10)

# name -> what it says; docs/observability.md has a line on each.
NAMES: Final = {
    "carousel_http_requests_total": "Requests of the client port that ended, by path and outcome.",
    "carousel_queue_seconds": "From prepared to the first work of the GPU thread.",
    "carousel_time_to_first_output_seconds": "From the request's head to the first text or call.",
    "carousel_inter_output_seconds": "Between two outputs of a reply; one output is one or more tokens.",
    "carousel_request_seconds": "From the request's head to the last byte of the reply, of turns.",
    "carousel_session_lost_total": "Answers session_lost, by the cause of the loss.",
    "carousel_forwarded_total": "Requests that another pod answered, by its ordinal.",
    "carousel_plan_bytes": "Bytes that the memory plan gives to each row.",
}


class HttpStats:
    """One per server. All of it belongs to the event loop."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def counter(name: str, *labels: str) -> Counter:
            return Counter(name, NAMES[name], labels, registry=self._registry)

        def histogram(name: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, NAMES[name], buckets=buckets, registry=self._registry)

        self.requests = counter("carousel_http_requests_total", "path", "outcome")
        self.queue = histogram("carousel_queue_seconds", WAIT_SECONDS)
        self.first_output = histogram("carousel_time_to_first_output_seconds", WAIT_SECONDS)
        self.inter_output = histogram("carousel_inter_output_seconds", GAP_SECONDS)
        self.request = histogram("carousel_request_seconds", WAIT_SECONDS)
        self.lost = counter("carousel_session_lost_total", "cause")
        self.forwarded = counter("carousel_forwarded_total", "ordinal")
        name = "carousel_plan_bytes"
        self._plan = Gauge(name, NAMES[name], ("memory", "row"), registry=self._registry)

    def text(self, plan: MemoryPlan) -> bytes:
        """Prometheus text."""
        self._plan.clear()
        for memory, rows in (("host", plan.host), ("gpu", plan.gpu)):
            for row in rows:
                self._plan.labels(memory, row.key).set(row.bytes)
        return generate_latest(self._registry)
