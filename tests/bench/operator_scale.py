"""How the operator carries many objects: time until all are reconciled, requests and writes at rest, memory.

`python -m tests.bench.operator_scale [--objects 500] [--rest 300] [--runs 1] [--out FILE]`: an API server of its own a
run, no pods are started. Prints one JSON object: of each figure the median, and with more runs than one the lowest and
the highest. A rest of 300 s has exactly one look at all objects in it.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx
from carousel_operator import names
from carousel_operator.crd import custom_resource_definition

from tests.operator.apiserver import ApiServer, Refused, running

METRICS_PORT = 18390
READS, WRITES = ("GET", "LIST"), ("POST", "PUT", "PATCH", "APPLY", "DELETE")


def main() -> int:
    """Measure `--runs` times."""
    found = argparse.ArgumentParser(description=__doc__)
    found.add_argument("--objects", type=int, default=500)
    found.add_argument("--rest", type=float, default=300.0, help="seconds to look at the operator at rest")
    found.add_argument("--runs", type=int, default=1, help="measure so often; figures get their spread")
    found.add_argument("--limit", type=float, default=900.0, help="seconds until the bench gives up")
    found.add_argument("--out", type=Path, help="also write the JSON object there")
    flags = found.parse_args()
    runs = [_run(flags.objects, flags.rest, flags.limit) for _ in range(flags.runs)]
    text = json.dumps(_summary(runs), indent=2)
    print(text)
    if flags.out:
        flags.out.write_text(f"{text}\n")
    return 0


def _run(objects: int, rest: float, limit: float) -> dict[str, float]:
    with running() as server:
        server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", custom_resource_definition())
        _wait_until_served(server)
        for number in range(objects):
            _create(server, f"chat-{number}")
        return _measure(server, objects, rest, limit)


def _summary(runs: list[dict[str, float]]) -> dict[str, object]:
    """`runs` and the median of each figure, or [median, lowest, highest] when there are several runs."""
    found: dict[str, object] = {"runs": len(runs)}
    for name in runs[0]:
        figures = [run[name] for run in runs]
        middle = round(statistics.median(figures), 2)
        found[name] = middle if len(runs) == 1 else [middle, min(figures), max(figures)]
    return found


def _measure(server: ApiServer, objects: int, rest: float, limit: float) -> dict[str, float]:
    command = [sys.executable, "-m", "carousel_operator", "run", "--kubeconfig", str(server.kubeconfig)]
    command += ["--health", "", "--metrics-port", str(METRICS_PORT), "--log-level", "error"]
    created = _requests(server)
    process = subprocess.Popen(command)
    try:
        began = time.monotonic()
        while _waiting(objects) or (done := _reconciled(server)) < objects:
            if time.monotonic() - began > limit or process.poll() is not None:
                raise SystemExit(f"only {_reconciled(server)} of {objects} were reconciled")
            time.sleep(0.5)
        all_after = time.monotonic() - began
        time.sleep(10)
        before, started = _requests(server), time.monotonic()
        time.sleep(rest)
        after, seconds = _requests(server), time.monotonic() - started
        return {
            "objects": done,
            "all reconciled after seconds": round(all_after, 1),
            "reads until then, per object": round((_sum(before, READS) - _sum(created, READS)) / objects, 1),
            "writes until then, per object": round((_sum(before, WRITES) - _sum(created, WRITES)) / objects, 1),
            "rest seconds": round(seconds, 1),
            "reads per second at rest": round((_sum(after, READS) - _sum(before, READS)) / seconds, 2),
            "writes at rest": _sum(after, WRITES) - _sum(before, WRITES),
            "operator memory MiB": _memory_mib(process.pid, "VmRSS"),
            "operator memory MiB, highest": _memory_mib(process.pid, "VmHWM"),
        }
    finally:
        process.terminate()
        process.wait(30)


def _waiting(objects: int) -> bool:
    """Whether the operator has something left to do, by its own metrics: cheaper than a list of all objects."""
    try:
        text = httpx.get(f"http://127.0.0.1:{METRICS_PORT}/metrics", trust_env=False).text
    except httpx.HTTPError:
        return True
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    done = float(values.get('carousel_operator_reconciles_total{outcome="ok"}', 0))
    return done < objects or float(values["carousel_operator_queue_depth"]) > 0


def _create(server: ApiServer, name: str) -> None:
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {"model": {"source": {"embedded": {}}}, "image": {"reference": "r/i:1"}},
    }
    server.call("POST", f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}", body)


def _wait_until_served(server: ApiServer) -> None:
    for _ in range(300):
        try:
            server.call("GET", f"/apis/{names.API_VERSION}/{names.PLURAL}")
            return
        except Refused:
            time.sleep(0.1)
    raise SystemExit("the CRD is not served")


def _reconciled(server: ApiServer) -> int:
    items = server.call("GET", f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}")["items"]
    return sum((item.get("status") or {}).get("observedGeneration") == 1 for item in items)


def _requests(server: ApiServer) -> dict[str, float]:
    """Requests so far by verb, leases and the API server's own loops left out."""
    counts: dict[str, float] = {}
    for line in server.kubectl("get", "--raw", "/metrics").splitlines():
        if line.startswith("apiserver_request_total{") and not _own(line):
            verb = re.search(r'verb="(\w+)"', line)
            if verb:
                counts[verb[1]] = counts.get(verb[1], 0.0) + float(line.rsplit(" ", 1)[1])
    return counts


def _own(line: str) -> bool:
    """Kinds that only the API server itself touches here."""
    kinds = ("leases", "namespaces", "endpointslices", "endpoints", "flowschemas", "prioritylevelconfigurations")
    resource = re.search(r'resource="(\w*)"', line)
    return resource is None or resource[1] in (*kinds, "", "apiservices", "servicecidrs", "ipaddresses")


def _sum(counts: dict[str, float], verbs: tuple[str, ...]) -> float:
    return sum(counts.get(verb, 0.0) for verb in verbs)


def _memory_mib(pid: int, field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return round(int(found[1]) / 1024) if found else 0


if __name__ == "__main__":
    sys.exit(main())
