"""How many threads a CPU engine should use: what the cgroup and the affinity mask really give."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

SMALL_HIDDEN = 512  # up to this width an operation of decode is a few microseconds
MOST = 8  # beyond this a model of this size gains nothing from more threads


@dataclass(frozen=True)
class Threads:
    """CPU threads of a prefill chunk and of a decode step."""

    prefill: int
    decode: int


def choose(hidden: int, asked: int | None = None, root: Path = Path("/sys/fs/cgroup")) -> Threads:
    """For a model of that width. A small one decodes on one thread: a second gains nothing and waits for the first."""
    prefill = asked or sensible(root)
    return Threads(prefill, 1 if hidden <= SMALL_HIDDEN else prefill)


def quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPUs of the container's quota (cgroup v2, or v1), None without one."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit_us = int((root / "cpu/cpu.cfs_quota_us").read_text())
        return None if limit_us < 0 else limit_us / int((root / "cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None


def sensible(root: Path = Path("/sys/fs/cgroup")) -> int:
    """At least 1: whole CPUs within quota and affinity. More threads than that only wait for each other."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = quota(root)
    return max(1, min(MOST, available if limit is None else min(available, math.floor(limit))))
