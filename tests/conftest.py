"""What must be so before any test module is imported, and which tests run with nothing beside them."""

import os
from pathlib import Path

import pytest

# Triton decides at import whether kernels are compiled or interpreted: without a CUDA driver they are interpreted.
if not Path("/proc/driver/nvidia").exists() and not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

HERE = Path(__file__).parent
BESIDE = (  # what only computes: `make test` runs two of these files at a time
    "unit/",
    "model/",
    "operator/",
    "server/test_core_same_text.py",
    "server/test_core_state_machine.py",
    "server/test_gpu_conversation.py",
    "cases/test_cases_a_to_h.py",
    "cases/test_mutations.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Servers, their sockets and their clocks get the machine for themselves."""
    for item in items:
        if not item.path.relative_to(HERE).as_posix().startswith(BESIDE):
            item.add_marker("alone")
