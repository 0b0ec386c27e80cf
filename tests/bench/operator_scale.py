"""How the operator carries many objects: time until all are reconciled, requests and writes at rest, memory.

`python -m tests.bench.operator_scale [--objects 500] [--rest 60]`: an API server of its own, no pods are started.
Prints one JSON object.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from carousel_operator import names
from carousel_operator.crd import custom_resource_definition

from tests.operator.apiserver import ApiServer, Refused, running

METRICS_PORT = 18390
READS, WRITES = ("GET", "LIST"), ("POST", "PUT", "PATCH", "APPLY", "DELETE")


def main() -> int:
    """Measure once."""
    found = argparse.ArgumentParser(description=__doc__)
    found.add_argument("--objects", type=int, default=500)
    found.add_argument("--rest", type=float, default=60.0, help="seconds to look at the operator at rest")
    found.add_argument("--limit", type=float, default=900.0, help="seconds until the bench gives up")
    flags = found.parse_args()
    with running() as server:
        server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", custom_resource_definition())
        _wait_until_served(server)
        for number in range(flags.objects):
            _create(server, f"chat-{number}")
        command = [sys.executable, "-m", "carousel_operator", "run", "--kubeconfig", str(server.kubeconfig)]
        command += ["--health", "", "--metrics-port", str(METRICS_PORT), "--log-level", "error"]
        process = subprocess.Popen(command)
        try:
            began = time.monotonic()
            while _reconciled(server) < flags.objects:
                if time.monotonic() - began > flags.limit or process.poll() is not None:
                    raise SystemExit(f"only {_reconciled(server)} of {flags.objects} were reconciled")
                time.sleep(1)
            all_after = time.monotonic() - began
            time.sleep(10)
            before, started = _requests(server), time.monotonic()
            time.sleep(flags.rest)
            after, seconds = _requests(server), time.monotonic() - started
            result = {
                "objects": flags.objects,
                "all reconciled after seconds": round(all_after, 1),
                "reads per second at rest": round(_sum(after, READS) / seconds - _sum(before, READS) / seconds, 2),
                "writes at rest": _sum(after, WRITES) - _sum(before, WRITES),
                "rest seconds": round(seconds, 1),
                "operator memory MiB": _memory_mib(process.pid),
            }
        finally:
            process.terminate()
            process.wait(30)
    print(json.dumps(result))
    return 0


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


def _memory_mib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return round(int(found[1]) / 1024) if found else 0


if __name__ == "__main__":
    sys.exit(main())
