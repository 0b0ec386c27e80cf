"""`carousel-server inspect` and `generate`, and the thread counts behind them."""

import dataclasses
import json

import pytest
from carousel_server import generate_cli, inspect_cli
from carousel_server.engine.threads import choose, quota, sensible
from carousel_server.engine.torch_engine import TorchEngine


def test_inspect_prints_the_parts_and_the_plan(capsys):
    assert inspect_cli.main(["embedded"]) == 0
    out = capsys.readouterr().out
    for line in ("14.66 M parameters", "6 gated DeltaNet, 2 sparse attention", "dense up to 259 tokens", "memory plan"):
        assert line in out


def test_inspect_as_json_adds_up(capsys):
    assert inspect_cli.main(["embedded", "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == 14_657_936
    assert found["valid_tokens"] == 3057
    assert sum(found["parts"].values()) < 30 * 2**20
    assert found["plan"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["/nowhere"], 66, "/nowhere: no such folder"),
        (["embedded", "--engine-context-tokens", "8"], 64, "context"),
        (["embedded", "--device", "cuda", "--gpu-bytes", "100Mi"], 78, "does not fit"),
        (["embedded", "--wrong"], 64, "--wrong"),
    ],
)
def test_inspect_refuses_with_its_exit_codes(capsys, arguments, code, message):
    assert inspect_cli.main(arguments) == code
    found = capsys.readouterr()
    assert message.lower() in (found.out + found.err).lower()


def test_generate_answers_and_checks_itself(capsys):
    arguments = ["embedded", "--prompt", "What is 17 plus 25?", "--check", "--threads", "1"]
    assert generate_cli.main(arguments) == 0
    found = capsys.readouterr()
    assert found.out.strip() == "17 + 25 = 42."
    assert "drafts accepted" in found.err
    assert "the same" in found.err


def test_the_check_finds_a_wrong_token(capsys, monkeypatch):
    step = TorchEngine.step

    def wrong_with_drafts(self, seq, token, sampler, drafts):
        chosen = step(self, seq, token, sampler, drafts)
        return [dataclasses.replace(one, token=(one.token + 1) % 3000) for one in chosen] if drafts else chosen

    monkeypatch.setattr(TorchEngine, "step", wrong_with_drafts)
    assert generate_cli.main(["embedded", "--prompt", "Hi", "--max-tokens", "6", "--check", "--threads", "1"]) == 1
    assert "DIFFERENT" in capsys.readouterr().err


def test_generate_is_repeatable_with_a_seed(capsys):
    texts = []
    for _ in range(2):
        arguments = ["--prompt", "Tell me a story.", "--temperature", "1.5", "--seed", "7", "--max-tokens", "12"]
        assert generate_cli.main([*arguments, "--threads", "1"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["/nowhere", "--prompt", "x"], 66, "nowhere"),
        (["--prompt", ""], 66, "the prompt is empty"),
        (["--prompt", "x", "--max-tokens", "0"], 64, "--max-tokens must be at least 1"),
        (["--prompt", "x", "--max-tokens", "9000"], 66, "max_position_embeddings"),
        ([], 64, "--prompt"),
    ],
)
def test_generate_refuses_with_its_exit_codes(capsys, arguments, code, message):
    assert generate_cli.main(arguments) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_the_cpu_quota_is_read_from_either_cgroup_version(tmp_path, files, cpus):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert quota(tmp_path) == cpus


def test_threads_stay_within_the_quota_and_a_small_model_decodes_on_one(tmp_path):
    (tmp_path / "cpu.max").write_text("50000 100000")
    assert sensible(tmp_path) == 1
    assert choose(256, 4).prefill == 4
    assert choose(256, 4).decode == 1
    assert choose(2560, 4).decode == 4
