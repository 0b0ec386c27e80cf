"""The cases notice each planted fault, and pass without one."""

import pytest

from tests.cases.mutations import FAULTS, Fault, failing_case


def test_without_a_fault_every_case_passes() -> None:
    assert failing_case(None) is None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.stage}: {fault.wrong[:40]}")
def test_a_planted_fault_fails_a_numbered_case(fault: Fault) -> None:
    assert failing_case(fault), f"no case notices {fault}"
