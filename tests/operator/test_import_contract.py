"""The parts that decide import neither kopf nor a client: what they need comes as an argument."""

import ast
from pathlib import Path

import carousel_operator
import pytest

PACKAGE = Path(carousel_operator.__file__).parent
PURE = (
    *("plan", "change", "memory", "drain", "status", "rollout", "resize", "ledger", "intent", "diagnosis", "headline"),
    *(
        "transitions",
        "queue",
        "view",
        "want",
        "actions",
        "pods",
        "timing",
        "events",
        "resource",
        "revision",
        "workload",
    ),
)
HANDS = frozenset({"kopf", "kubernetes", "httpx", "aiohttp", "asyncio", "socket", "requests", "prometheus_client"})
CLOCKS = frozenset({"time.time", "time.monotonic", "datetime.now", "datetime.utcnow"})


def _imports(module: str) -> set[str]:
    tree = ast.parse((PACKAGE / f"{module}.py").read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _reach(module: str, seen: set[str]) -> set[str]:
    """Every module outside the package that `module` imports, directly or through the package."""
    if module in seen:
        return set()
    seen.add(module)
    outside = set()
    for name in _imports(module):
        inner = name.removeprefix("carousel_operator.").split(".")[0]
        if name.startswith("carousel_operator.") and (PACKAGE / f"{inner}.py").exists():
            outside |= _reach(inner, seen)
        elif not name.startswith("carousel_operator"):
            outside.add(name.split(".")[0])
    return outside


@pytest.mark.parametrize("module", PURE)
def test_a_part_that_decides_reaches_no_client_and_no_watch(module: str) -> None:
    assert not _reach(module, set()) & HANDS


@pytest.mark.parametrize("module", PURE)
def test_a_part_that_decides_reads_no_clock(module: str) -> None:
    calls = {
        ast.unparse(n.func)
        for n in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text()))
        if isinstance(n, ast.Call)
    }
    assert not calls & CLOCKS


def test_the_contract_would_see_a_client() -> None:
    assert "aiohttp" in _reach("api", set())
    assert "kopf" in _reach("handlers", set())


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda p: p.stem)
def test_no_part_of_the_operator_imports_torch_or_a_web_framework(path: Path) -> None:
    assert not _reach(path.stem, set()) & {"torch", "fastapi", "uvicorn", "triton"}


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda p: p.stem)
def test_no_file_is_longer_than_four_hundred_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_every_handler_is_a_coroutine_because_the_queue_belongs_to_the_event_loop() -> None:
    tree = ast.parse((PACKAGE / "handlers.py").read_text())
    decorated = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    handlers = [n for n in decorated if any("kopf.on" in ast.unparse(d) for d in n.decorator_list)]
    assert len(handlers) == 3
    assert all(isinstance(n, ast.AsyncFunctionDef) for n in handlers)
