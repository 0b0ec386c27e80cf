"""Every case number has a test. Test functions carry them with numbers.case."""

import importlib
from pathlib import Path

from tests.cases.numbers import NUMBERS


def carried() -> dict[str, list[str]]:
    """Case number -> the tests that carry it, from the test modules of this folder."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.cases.{path.stem}")
        for name, test in vars(module).items():
            if name.startswith("test_"):
                for number in getattr(test, "case_numbers", ()):
                    found.setdefault(number, []).append(f"{path.stem}.{name}")
    return found


def test_every_case_has_a_test() -> None:
    missing = {number: title for number, title in NUMBERS.items() if number not in carried()}
    assert not missing, f"no test carries {missing}"
