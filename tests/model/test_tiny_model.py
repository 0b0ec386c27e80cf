"""The scripts that made the embedded model: their chats depend on seeds alone, their network is the engine's model."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from carousel_server.engine import EMBEDDED
from safetensors.torch import load_file

from tests.model.engine_kit import all_logits, open_engine, random_ids

SCRIPTS = Path(__file__).parents[2] / "server" / "tiny_model"


@pytest.mark.parametrize(
    ("mixture", "arguments", "digest"),
    [
        ("1", ["--docs", "200", "--seed", "1"], "d2cce04bba50c33f"),
        ("2", ["--docs", "200", "--seed", "2"], "51b3505357c8149d"),
        ("1", ["--eval", "2"], "2d1eee79d58ab908"),
    ],
)
def test_chats_are_a_function_of_their_seed(tmp_path, mixture, arguments, digest):
    """The digests are those of the chats that the embedded model was trained on and scored with."""
    out = tmp_path / "chats.jsonl"
    command = [sys.executable, "generate_data.py", *arguments, "--out", str(out)]
    subprocess.run(command, cwd=SCRIPTS, env={"TINY_DATA": mixture}, check=True, capture_output=True)
    assert hashlib.sha256(out.read_bytes()).hexdigest()[:16] == digest


def test_the_chat_renderer_of_the_scripts_is_the_template(monkeypatch, capsys):
    monkeypatch.syspath_prepend(SCRIPTS)
    import selftest

    selftest.run(200)
    assert capsys.readouterr().out.startswith("ok: 200 documents")


def test_the_training_network_gives_the_logits_of_the_engine(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    from network.checkpoint import import_state
    from network.model import Model

    rows = 320  # beyond the 259 that are dense; a multiple of the network's chunks
    ids, model = random_ids(3, rows, below=3000), Model()
    import_state(model, load_file(EMBEDDED / "model.safetensors"))
    one = torch.zeros(1, rows, dtype=torch.long)
    with torch.no_grad():
        found = model(torch.tensor([ids]), one, torch.arange(rows)[None], torch.ones(1, rows), logits=True)
    ours = all_logits(open_engine("embedded", slots=1), ids, 1000)
    worst = (found["logits"][0] - ours).abs().max().item()
    print(f"max |difference| {worst:.1e}")
    assert worst <= 5e-4
