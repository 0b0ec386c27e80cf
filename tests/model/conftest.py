"""Checkpoints and oracles that the model's tests share."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.model.oracle.make_tiny import make_tiny
from tests.model.oracle.reference_model import Reference

ORACLE = Path(__file__).parent / "oracle"


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Two busy test processes on two cores wait for each other with more."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """The tiny random checkpoint in fp32: 8 layers, 8 experts, a sparse budget of 32 tokens."""
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def golden() -> dict[str, torch.Tensor]:
    """Values of transformers (and of the reference for the draft head) on the tiny checkpoint: `<prompt>.<what>`."""
    return load_file(ORACLE / "golden" / "golden.safetensors")


@pytest.fixture(scope="session")
def reference(tiny) -> Reference:
    return Reference(tiny)


@pytest.fixture(scope="session")
def tiny_config(tiny) -> dict:
    return json.loads((tiny / "config.json").read_text())
