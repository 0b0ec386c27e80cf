"""Counters of the core, and their Prometheus text. Names are stable; counters end in `_total`."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# name -> help; docs/metrics.md has a line on each. Labels stand behind the name.
COUNTERS: Final = {
    "carousel_requests": ("Requests that ended, by outcome.", ("outcome",)),
    "carousel_requests_cancelled": ("Cancelled requests, by cause.", ("cause",)),
    "carousel_requests_rejected": ("Requests refused before they ran, by error code.", ("code",)),
    "carousel_tokens": ("Tokens: prompt, cached (of the prompt), output.", ("kind",)),
    "carousel_seconds": ("Worker seconds in prefill, decode, switching; request seconds in waiting.", ("kind",)),
    "carousel_sessions_dropped": ("Sessions that went, by cause.", ("cause",)),
    "carousel_prefix_cache_lookups": ("Prefix cache look-ups: hit or miss.", ("result",)),
    "carousel_prefix_cache_dropped": ("Checkpoints that went, by cause.", ("cause",)),
    "carousel_prefix_mismatches": ("Turns whose rendering did not begin with the session's checkpoint.", ()),
    "carousel_drafts": ("Draft tokens: proposed, accepted.", ("result",)),
    "carousel_integrity_errors": ("Idle checks that found something held.", ()),
    "carousel_switches": ("Sequences moved between GPU and host: save, restore.", ("kind",)),
}
GAUGES: Final = {
    "carousel_requests_now": ("Requests on this pod, by phase.", ("phase",)),
    "carousel_reserved_bytes": ("Bytes reserved by requests.", ()),
    "carousel_sessions": ("Sessions in memory.", ()),
    "carousel_sessions_in_flight": ("Sessions with a turn in progress.", ()),
    "carousel_sessions_bytes": ("Bytes of session histories.", ()),
    "carousel_prefix_cache_entries": ("Checkpoints in the prefix cache.", ()),
    "carousel_prefix_cache_bytes": ("Bytes of the prefix cache.", ()),
    "carousel_limits_generation": ("Generation of the limits in force.", ()),
    "carousel_serving": ("1 while the server takes requests.", ()),
    "carousel_draining": ("1 while the server drains.", ()),
}

Sample = tuple[str, tuple[str, ...], float]


@dataclass
class Stats:
    """Everything that is counted. Increments come under the core's lock."""

    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("prefill", "decode", "switching", "waiting"), 0.0)
    )

    def add(self, name: str, *labels: str, by: int = 1) -> None:
        """Count `by` more; the name is one of COUNTERS without `carousel_`."""
        self.counts[(name, *labels)] += by

    def spend(self, kind: str, seconds: float) -> None:
        """Add time to prefill, decode, switching or waiting."""
        self.seconds[kind] += seconds

    def samples(self) -> Iterator[Sample]:
        """Counter samples: full name, label values, value."""
        for (name, *labels), value in list(self.counts.items()):
            yield f"carousel_{name}", tuple(labels), float(value)
        for kind, seconds in self.seconds.items():
            yield "carousel_seconds", (kind,), seconds


class _Collector(Collector):
    def __init__(self, counters: Iterable[Sample], gauges: Iterable[Sample]) -> None:
        self._counters, self._gauges = counters, gauges

    def collect(self) -> Iterable[Metric]:
        counters = {n: CounterMetricFamily(n, text, labels=labels) for n, (text, labels) in COUNTERS.items()}
        for name, labels, value in self._counters:
            counters[name].add_metric(list(labels), value)
        for name, (_, label_names) in COUNTERS.items():
            if not label_names and not counters[name].samples:
                counters[name].add_metric([], 0.0)
        gauges = {n: GaugeMetricFamily(n, text, labels=labels) for n, (text, labels) in GAUGES.items()}
        for name, labels, value in self._gauges:
            gauges[name].add_metric(list(labels), value)
        return [*counters.values(), *gauges.values()]


def exposition(counters: Iterable[Sample], gauges: Iterable[Sample]) -> bytes:
    """Prometheus text format 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(list(counters), list(gauges)))
    return generate_latest(registry)
