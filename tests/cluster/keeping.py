"""What the full cluster matrix found, kept in results/: a file for each scenario, and the outcome of every test.

Written unless only one row per promise was asked for (`-m "cluster and not full"`), so that CI leaves the tree alone.
A run of the whole matrix ends with its sum, and with what it found alone: lines and files of earlier runs go.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).with_name("results")
CLUSTER = "tests/cluster/"
OUTCOMES = "outcomes.txt"
SUM = "whole run"
ADDRESS = re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b")


class Keeper:
    """A pytest plugin that records outcomes; `keeps`: this run writes anything, `whole`: it was asked for all rows."""

    def __init__(self) -> None:
        self.keeps = self.whole = False
        self.written: set[str] = set()  # files of this run
        self.wanted: set[str] = set()
        self.ended: dict[str, str] = {}  # test -> outcome
        self.began = time.monotonic()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.wanted = {_name(item.nodeid) for item in session.items}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Forget earlier runs, if this one left nothing out."""
        if not (self.keeps and self.whole and self.wanted and self.wanted == set(self.ended)):
            return
        counts = Counter(self.ended.values())
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        lines = {name: line for name, line in _outcomes().items() if name in self.wanted}
        lines[SUM] = f"{told} in {(time.monotonic() - self.began) / 60:.0f} min"
        _write(lines)
        for path in FOLDER.glob("*.txt"):
            if path.name not in self.written | {OUTCOMES}:
                path.unlink()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One line a test, the newest outcome; an earlier run's line stays where a test did not run."""
        beside = not report.nodeid.startswith(CLUSTER)  # `make test` collects this folder, too
        if not self.keeps or beside or (report.when != "call" and report.passed):
            return
        name = _name(report.nodeid)
        lines = _outcomes()
        lines.pop(SUM, None)
        crash = getattr(report.longrepr, "reprcrash", None)
        why = ": " + ADDRESS.sub("ADDRESS", crash.message.splitlines()[0][:200]) if crash else ""
        if self.ended.get(name) != "failed":  # a clean end does not mend a failed test, a failed end does count
            self.ended[name] = report.outcome
            lines[name] = f"{report.outcome} in {report.duration:.0f} s{why}"
        _write(lines)


def _name(nodeid: str) -> str:
    return nodeid.removeprefix(CLUSTER)


def _outcomes() -> dict[str, str]:
    path = FOLDER / OUTCOMES
    return dict(line.split("  ", 1) for line in (path.read_text().splitlines() if path.exists() else []))


def _write(lines: Mapping[str, str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    text = "".join(f"{test}  {told}\n" for test, told in sorted(lines.items(), key=lambda line: (line[0] == SUM, line)))
    (FOLDER / OUTCOMES).write_text(text)


KEEPER = Keeper()


def keep(name: str, lines: Iterable[str]) -> None:
    """Write one file of the results, without addresses."""
    if KEEPER.keeps:
        FOLDER.mkdir(exist_ok=True)
        text = "".join(f"{line.rstrip()}\n" for line in lines)
        KEEPER.written.add(f"{name}.txt")
        (FOLDER / f"{name}.txt").write_text(ADDRESS.sub("ADDRESS", text))


def running_test() -> str:
    """`test_rollout-test_x-row` of the test that runs."""
    current = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    return re.sub(r"[^\w.]+", "-", current.removeprefix(CLUSTER).replace(".py::", "-")).strip("-")


def timeline(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines `seconds  who  what` in the order of time; sessions get short names, and only the first and last turn of
    each session is shown."""
    found = sorted(events, key=lambda event: float(event["at"]))
    names: dict[str, str] = {}
    last = {event["session"]: event["turns"] for event in found if event["what"] == "turn"}
    lines = []
    for event in found:
        facts = {key: value for key, value in event.items() if key not in ("at", "what", "session", "who")}
        session = event.get("session")
        if event["what"] == "turn" and facts["turns"] not in (1, last[session]):
            continue
        whose = ""
        if session:
            ordinal, boot = str(session).split(".")[:2]
            whose = names.setdefault(session, f" s{len(names) + 1} (pod {ordinal}, boot {boot[:6]})")
        if facts.get("error"):
            facts["error"] = facts["error"].get("cause") or facts["error"]["code"]
        told = " ".join(f"{key}={value}" for key, value in facts.items() if value not in (None, ""))
        lines.append(f"{event['at']:7.1f}  {event.get('who', 'client'):8} {event['what']}{whose} {told}")
    return lines
