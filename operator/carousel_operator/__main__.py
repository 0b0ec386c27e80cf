"""`carousel-operator`: the command line. Parses flags and starts the process."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from carousel_operator.process import Options, run

ENV = "CAROUSEL_OPERATOR_"


def parser() -> argparse.ArgumentParser:
    """All flags. Each has an environment variable's value or a constant as its default; `run` may be left out."""
    found = argparse.ArgumentParser(
        prog="carousel-operator",
        description="Runs the InferenceServer objects of a cluster: watches and reconciles until a signal comes.",
    )
    found.add_argument("command", nargs="?", choices=["run"], default="run", help="the only command, and the default")
    found.add_argument(
        "--namespace",
        action="append",
        metavar="NS",
        help=f"only this namespace; may be repeated (default: {ENV}NAMESPACES, separated by commas; empty: all)",
    )
    found.add_argument("--kubeconfig", metavar="FILE", help="default: KUBECONFIG, or the pod's service account")
    found.add_argument("--workers", type=int, default=8, help="reconciles at the same time (default 8)")
    found.add_argument(
        "--health", default="0.0.0.0:8080", metavar="HOST:PORT", help="serves /healthz (default 0.0.0.0:8080; '': off)"
    )
    found.add_argument("--metrics-port", type=int, default=9090, help="serves /metrics (default 9090; 0: off)")
    found.add_argument(
        "--operator-namespace",
        default=os.environ.get(f"{ENV}NAMESPACE") or "default",
        metavar="NS",
        help=f"where the operator itself runs (default: {ENV}NAMESPACE, or default)",
    )
    found.add_argument(
        "--identity",
        default=os.environ.get(f"{ENV}POD_NAME", ""),
        help=f"tells two operators apart (default: {ENV}POD_NAME, or the host's name)",
    )
    level = os.environ.get(f"{ENV}LOG_LEVEL") or "info"
    found.add_argument("--log-level", default=level.lower(), choices=["debug", "info", "warning", "error"])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a signal, 1 when a part failed."""
    flags = parser().parse_args(argv)
    logging.basicConfig(
        level=flags.log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s %(message)s", stream=sys.stderr
    )
    for chatty in ("httpx", "aiohttp.access", "kopf.objects"):  # a line per call, probe and event would bury the rest
        logging.getLogger(chatty).setLevel(logging.WARNING)
    from_environment = [name for name in os.environ.get(f"{ENV}NAMESPACES", "").split(",") if name]
    options = Options(
        namespaces=tuple(flags.namespace or from_environment),
        kubeconfig=flags.kubeconfig,
        workers=flags.workers,
        health_address=flags.health,
        metrics_port=flags.metrics_port,
        operator_namespace=flags.operator_namespace,
        identity=flags.identity,
    )
    try:
        asyncio.run(run(options))
    except Exception:
        logging.getLogger("carousel.operator").exception("the operator ends because a part of it failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
