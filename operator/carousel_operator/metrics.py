"""The operator's own counters, under the names of names.METRICS, and the endpoint that shows them."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from carousel_operator import names


class Metrics:
    """One set per process; tests make their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = self._counter("carousel_operator_reconciles_total", "outcome")
        self.seconds = Histogram(
            "carousel_operator_reconcile_seconds",
            names.METRICS["carousel_operator_reconcile_seconds"],
            registry=self.registry,
        )
        self.errors = self._counter("carousel_operator_errors_total", "kind")
        self.queue_depth = self._gauge("carousel_operator_queue_depth")
        self.writes = self._counter("carousel_operator_writes_total", "kind", "verb")
        self.admin_calls = self._counter("carousel_operator_admin_calls_total", "call", "outcome")
        self.drains = self._counter("carousel_operator_drains_total", "reason", "outcome")
        self.lost_boots = self._counter("carousel_operator_lost_boots_total", "cause")
        self.lost_sessions = self._counter("carousel_operator_lost_sessions_total", "cause")
        self.servers = self._gauge("carousel_operator_servers", "ready")
        self.others = self._gauge("carousel_operator_other_operators")

    def serve(self, host: str, port: int) -> None:
        """Show them on http://host:port/metrics from a daemon thread."""
        start_http_server(port, addr=host, registry=self.registry)

    def count_write(self, kind: str, verb: str) -> None:
        """One write to the API server."""
        self.writes.labels(kind, verb).inc()

    def count_call(self, call: str, outcome: str) -> None:
        """One call of an admin port."""
        self.admin_calls.labels(call, outcome).inc()

    def _counter(self, name: str, *labels: str) -> Counter:
        return Counter(name, names.METRICS[name], labels, registry=self.registry)

    def _gauge(self, name: str, *labels: str) -> Gauge:
        return Gauge(name, names.METRICS[name], labels, registry=self.registry)
