"""The whole server on a GPU, over HTTP: `carousel-server serve --device cuda`, the embedded model, four settings.

Where a test of the CPU server says it already, the same test runs here. Texts are those of a server on the CPU; the
memory is what the plan said; a device that fails ends the process with its code. `CAROUSEL_TEST_DEVICE=cpu` tries what
does not look at the device.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server.core_gate import GatedServer, RawClient, gated
from tests.server.http_kit import TOKEN, chat_body, events_of, text_of, wait_for
from tests.server.test_core_socket import (  # noqa: F401  # the same tests, by the `process` of this module
    FLAGS,
    content,
    test_a_cancel_in_this_phase_has_its_outcome,
    test_a_cancel_is_answered_alike_for_a_queued_and_an_unknown_request,
    test_a_cancelled_turn_leaves_the_next_one_as_if_it_had_never_been,
    test_a_reader_that_stands_still_fills_its_queue_and_is_cancelled,
    test_an_engine_failure_ends_its_turn_only,
    test_four_mixed_chats_say_together_what_each_says_alone,
    test_once_the_finish_chunk_was_sent_the_turn_is_committed,
    test_streamed_json_and_committed_text_are_the_same,
    test_two_streams_interleave_frame_by_frame,
    test_without_memory_a_request_is_503_alone_and_waits_beside_another,
    tiny,
)
from tests.server.test_process_memory import most_resident

DEVICE = os.environ.get("CAROUSEL_TEST_DEVICE", "cuda")
START = 300.0  # seconds: on a fresh machine every kernel is compiled first
EXPERT = 3 * 64 * 256 * 2  # bytes of an expert of the embedded model, in bf16
FEW = 9 * 5 * EXPERT  # five of each layer's 16; a token needs four
SETTINGS: dict[str, tuple[str, ...]] = {
    "resident": ("--gpu-state-slots", "4"),
    "one slot": ("--gpu-state-slots", "1"),
    "few experts": ("--expert-pool-bytes", str(FEW)),
    "drafts": ("--engine-drafts", "3"),
}
PROMPTS = (
    "Hello!",
    "What is 12 plus 7?",
    "Count from 3 to 9.",
    "What day comes after Monday?",
    "Tell me about the sea and the ships.",
    "What is the capital of France?",
)
SAVES = 'carousel_switches_total{kind="save"}'
CLEAR = 0.5  # the two best log probabilities are further apart at every token of PROMPTS: no rounding turns them
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
on_a_device = pytest.mark.skipif(DEVICE == "cpu", reason="looks at a device")

Start = Callable[[str], GatedServer]


def on(device: str, *flags: str) -> tuple[str, ...]:
    return ("--device", device, "--no-access-log", *flags)


def device_free() -> int:
    """Bytes that are free on the GPU; this process takes its own part at the first look."""
    import torch

    return int(torch.cuda.mem_get_info()[0]) if DEVICE == "cuda" else 0


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Servers by setting, each started once; all leave with 0."""
    running: dict[str, tuple[Any, GatedServer]] = {}

    def get(setting: str) -> GatedServer:
        if setting not in running:
            folder = tmp_path_factory.mktemp(setting.replace(" ", "-"))
            context = gated(folder, *on(DEVICE, *SETTINGS[setting]), wait=START)
            running[setting] = (context, context.__enter__())
            found = running[setting][1]
            found.http.timeout = START
            if setting == "drafts" and DEVICE == "cuda":
                found.gate.ask("always_draft")
        return running[setting][1]

    yield get
    for context, found in running.values():
        assert found.idle(60)["reservedBytes"] == 0
        context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedServer]:
    with gated(tmp_path_factory.mktemp("cpu"), *on("cpu")) as found:
        yield found


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedServer]:
    """What the tests of test_core_socket.py run against."""
    with gated(tmp_path_factory.mktemp("gated"), *on(DEVICE, *FLAGS), wait=START) as found:
        found.http.timeout = START
        if DEVICE == "cuda":
            found.gate.ask("always_draft")
        found.chat("Hello! " * 100, max_tokens=4).raise_for_status()  # the first prompt compiles kernels
        yield found


@on_a_device
@pytest.mark.parametrize("setting", ["resident", "few experts"])
def test_gpu_and_host_memory_stay_within_the_plan_under_load(
    tmp_path: Path, setting: str, record_property: Callable[[str, object], None]
) -> None:
    """More long prompts than slots, sampled with penalties, a grammar among them. What others take of the device while
    this runs is counted in."""
    before = device_free()
    with gated(tmp_path, *on(DEVICE, *SETTINGS[setting], "--limits-active-requests", "6"), wait=START) as server:
        server.http.timeout = START
        planned = server.admin.get("/admin/plan").raise_for_status().json()
        at_start = before - device_free(), most_resident(server.pid)

        def chat(number: int) -> int:
            words = f"The {number} ships lie in the harbour until the evening wind comes. " * (60 * number)
            sampled = {"temperature": 0.9, "seed": number, "frequency_penalty": 0.4, "logprobs": True}
            form = {"response_format": {"type": "json_object"}} if number == 3 else {}
            return server.chat(words, max_tokens=200, **sampled, **form).status_code

        with ThreadPoolExecutor(6) as clients:
            assert set(clients.map(chat, range(1, 7))) == {200}
        assert server.metric(SAVES) > 0, "some of six requests had to leave the four slots"
        torch_took = server.gate.ask("memory")
        taken, resident = before - device_free(), most_resident(server.pid)
    rows = {row["key"]: row["bytes"] for row in planned["gpu"]}
    tensors = planned["gpuBytes"] - rows["runtime"]
    figures = {
        "GPU planned": planned["gpuBytes"],
        "GPU taken at the start": at_start[0],
        "GPU taken at most": taken,
        "torch reserved at most": torch_took["reserved"],
        "torch allocated at most": torch_took["allocated"],
        "planned without the runtime row": tensors,
        "so the runtime row needs": taken - tensors,
        "beside torch (context, kernels)": taken - torch_took["reserved"],
        "host planned": planned["hostBytes"],
        "host resident at the start": at_start[1],
        "host resident at most": resident,
        "host runtime row needs": resident - planned["hostBytes"] + host_row(planned, "runtime"),
    }
    print(f"\n{setting}:\n" + "\n".join(f"  {name:<34}{value / 2**20:>10.1f} MiB" for name, value in figures.items()))
    for name, value in figures.items():
        record_property(name, value)
    assert taken <= planned["gpuBytes"]
    assert torch_took["allocated"] <= tensors
    assert resident <= planned["hostBytes"]


def host_row(planned: dict[str, Any], key: str) -> int:
    return next(int(row["bytes"]) for row in planned["host"] if row["key"] == key)


def test_a_server_tells_how_far_its_start_is_and_then_is_healthy(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    command = [sys.executable, "-m", "carousel_server", "serve", "--host", "127.0.0.1", "--port", "0"]
    command += ["--admin-port", "0", "--admin-token", str(tmp_path / "token"), *on(DEVICE)]
    import httpx

    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert child.stdout is not None
        url = f"http://127.0.0.1:{json.loads(child.stdout.readline())['port']}"
        told: list[tuple[int, float, str]] = []

        def healthy() -> bool:
            reply = httpx.get(f"{url}/health")
            told.append((reply.status_code, reply.json()["progress"], reply.json()["message"]))
            return reply.status_code == 200 and told[-1][1] == 1.0  # it serves while experts arrive

        wait_for(healthy, START)
    finally:
        child.terminate()
        code = child.wait(60)
    assert code == 0
    loading = [row for row in told if row[0] == 503]
    assert loading
    assert [row[1] for row in told] == sorted(row[1] for row in told)
    assert told[-1][1] == 1.0
    assert DEVICE == "cpu" or any("GPU" in what for _, _, what in loading), loading


def greedy(server: GatedServer, text: str) -> str:
    return content(server.chat(text, max_tokens=40))


@pytest.mark.parametrize("setting", SETTINGS)
def test_greedy_texts_are_those_of_the_server_on_the_cpu(setting: str, start: Start, on_cpu: GatedServer) -> None:
    """The same bf16 weights with fp32 activations on both: every token's choice is clear on the CPU, so the texts have
    to be equal."""
    for prompt in PROMPTS:
        reply = on_cpu.chat(prompt, max_tokens=40, logprobs=True, top_logprobs=2).raise_for_status().json()
        tokens = reply["choices"][0]["logprobs"]["content"]
        best = [[one["logprob"] for one in token["top_logprobs"]] for token in tokens]
        assert min(first - second for first, second in best) > CLEAR, prompt
        assert greedy(start(setting), prompt) == reply["choices"][0]["message"]["content"]


@on_a_device
def test_the_four_settings_are_what_they_say(start: Start) -> None:
    engines = {name: start(name).admin.get("/admin/plan").json() for name in SETTINGS}
    pools = {name: next(r["note"] for r in one["gpu"] if r["key"] == "expert pool") for name, one in engines.items()}
    assert {name: one["engine"]["gpuStateSlots"] for name, one in engines.items()} == {
        name: 1 if name == "one slot" else 4 for name in SETTINGS
    }
    assert {name: note.split(" experts")[0] for name, note in pools.items()} == {
        name: "5 of 16" if name == "few experts" else "16 of 16" for name in SETTINGS
    }
    greedy(start("drafts"), PROMPTS[2])
    assert start("drafts").metric('carousel_drafts_total{result="accepted"}') > 0


def test_a_turn_behind_a_sampled_one_and_one_that_ended_at_its_length_has_its_drafts(start: Start) -> None:
    server = start("drafts")
    session, proposed = server.session(), 'carousel_drafts_total{result="proposed"}'
    cut = server.chat("Count from 3 to 9.", session_id=session, max_tokens=5)
    assert cut.json()["choices"][0]["finish_reason"] == "length"
    server.chat("Tell me about the sea.", session_id=session, max_tokens=8, temperature=1.0, seed=1).raise_for_status()
    before = server.metric(proposed)
    last = server.chat("Count from 3 to 9.", session_id=session, max_tokens=20)
    assert last.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert server.metric(proposed) > before


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_second_turn_of_a_session_knows_the_first(setting: str, start: Start) -> None:
    server = start(setting)
    for name in ("Ada", "Tom"):
        session = server.session()
        server.chat(f"My name is {name}.", session_id=session).raise_for_status()
        second = server.chat("What is my name?", session_id=session)
        assert name in content(second)
        assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert server.turns_of(session) == 2


def sampled_texts(server: GatedServer, *, together: bool) -> list[str]:
    """Three seeded chats, streamed."""

    def say(seed: int) -> str:
        body = {"max_tokens": 48, "temperature": 1.2, "seed": seed, "stream": True}
        return text_of(events_of(server.chat("Write a short story about a fox.", **body).text))

    with ThreadPoolExecutor(3 if together else 1) as clients:
        return list(clients.map(say, range(3)))


def test_seeded_samples_are_the_same_alone_interleaved_and_with_one_slot(start: Start) -> None:
    wide, narrow = start("resident"), start("one slot")
    alone = sampled_texts(wide, together=False)
    assert len(set(alone)) == 3
    saves = narrow.metric(SAVES)
    assert sampled_texts(wide, together=True) == alone
    assert sampled_texts(narrow, together=True) == alone
    assert narrow.metric(SAVES) > saves, "they took turns in the one slot"


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_function_is_called_and_its_result_is_told(setting: str, stream: bool, start: Start) -> None:
    server = start(setting)
    session = server.session(tools=[TOOL])
    reply = server.chat("What is the weather in Oslo?", session_id=session, stream=stream)
    if stream:
        deltas = [event["choices"][0]["delta"] for event in events_of(reply.text) if event.get("choices")]
        parts = [part for delta in deltas for part in delta.get("tool_calls") or ()]
        call = {"id": parts[0]["id"], "name": parts[0]["function"]["name"]}
        arguments = "".join(part["function"].get("arguments") or "" for part in parts)
    else:
        (found,) = reply.raise_for_status().json()["choices"][0]["message"]["tool_calls"]
        call = {"id": found["id"], "name": found["function"]["name"]}
        arguments = found["function"]["arguments"]
    assert (call["name"], json.loads(arguments)) == ("get_weather", {"city": "Oslo"})
    result = {"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"temperature": 21})}
    told = server.http.post("/v1/chat/completions", json={"messages": [result], "session_id": session})
    assert "21" in content(told)


@pytest.mark.parametrize("temperature", [0.0, 1.5], ids=["greedy", "sampled"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_schema_is_kept_whatever_is_drawn(setting: str, temperature: float, start: Start) -> None:
    colours = ["red", "green", "blue"]
    schema = {
        "type": "object",
        "properties": {"name": {"enum": colours}, "warm": {"type": "boolean"}},
        "required": ["name", "warm"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "colour", "strict": True, "schema": schema}}
    reply = start(setting).chat("Name a colour.", response_format=form, temperature=temperature, seed=5, max_tokens=200)
    found = json.loads(content(reply))
    assert found["name"] in colours
    assert isinstance(found["warm"], bool)
    assert set(found) == {"name", "warm"}


def test_logprobs_are_those_of_the_server_on_the_cpu(start: Start, on_cpu: GatedServer) -> None:
    def tokens(server: GatedServer) -> list[dict[str, Any]]:
        reply = server.chat("Count from 3 to 9.", max_tokens=30, logprobs=True, top_logprobs=5).raise_for_status()
        return list(reply.json()["choices"][0]["logprobs"]["content"])

    found, wanted = tokens(start("resident")), tokens(on_cpu)
    assert [one["token"] for one in found] == [one["token"] for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-2)
        assert one["top_logprobs"][0]["token"] == one["token"]
        values = [top["logprob"] for top in one["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert values == pytest.approx([top["logprob"] for top in other["top_logprobs"]], abs=2e-2)


def test_a_session_of_another_boot_is_lost_and_says_so(start: Start) -> None:
    session = start("one slot").session()
    gone = start("resident").chat("Hello!", session_id=session)
    assert (gone.status_code, gone.json()["error"]["code"]) == (410, "session_lost")
    assert start("one slot").chat("Hello!", session_id=session).status_code == 200


def test_sigterm_lets_a_stream_end_and_exits_0(tmp_path: Path) -> None:
    with gated(tmp_path, *on(DEVICE), wait=START) as server:
        server.http.timeout = START
        whole = greedy(server, "Count from 3 to 9.")
        body = chat_body("Count from 3 to 9.", max_tokens=40, stream=True)
        server.gate.ask("hold", point="step", after=3)
        with ThreadPoolExecutor(1) as clients:
            reading = clients.submit(server.http.post, "/v1/chat/completions", json=body)
            server.gate.wait()
            os.kill(server.pid, signal.SIGTERM)
            wait_for(lambda: server.probe.get("/readyz").status_code == 503)
            refused = server.chat("Hello!")
            assert refused.json()["error"]["code"] == "draining"
            server.gate.ask("go")
            assert text_of(events_of(reading.result(60).text)) == whole


@on_a_device
@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("illegal access", 70, r"the device failed: .*illegal memory access"),
        ("no memory", 71, r"the device is out of memory beyond its plan: CUDA out of memory"),
    ],
)
def test_a_fault_of_the_device_fails_its_requests_and_livez_and_ends_the_process(
    tmp_path: Path, kind: str, code: int, words: str
) -> None:
    with gated(tmp_path, *on(DEVICE), code=code, wait=START) as server:
        server.http.timeout = START
        session = server.session()
        server.chat("My name is Ada.", session_id=session).raise_for_status()
        assert server.probe.get("/livez").status_code == 200
        with server.gate.hold("completing"):  # a writer stands before its end, so the ports stay for a while
            other = RawClient(server, chat_body("Hello!", max_tokens=2))
            server.gate.wait()
            server.gate.ask("fault", kind=kind)
            failed = server.chat("What is my name?", session_id=session)
            assert failed.status_code == 500, failed.text
            assert re.search(words, failed.json()["error"]["message"]), failed.text
            assert server.probe.get("/livez").status_code == 503
            assert server.http.get("/health").status_code == 503
        other.socket.close()
        began = time.monotonic()
    assert time.monotonic() - began < 30
    last = server.log.read_text().splitlines()[-1]  # what Kubernetes tells of the container
    assert re.match(f"carousel-server: the device is lost: .*{words}", last), last


@on_a_device
def test_slots_and_context_that_no_gpu_holds_end_with_78_and_the_table(tmp_path: Path) -> None:
    from tests.bench.gpu_random_model import released_config

    config = {"model_type": "qwen4_exp", "text_config": released_config()}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    command = [sys.executable, "-m", "carousel_server", "serve", "--model", str(tmp_path), "--device", "cuda"]
    command += ["--port", "0", "--admin-port", "0", "--expert-pool-bytes", "110Gi"]
    command += ["--engine-context-tokens", "262144", "--gpu-state-slots", "16"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 78, ended.stderr
    assert "does not fit: GPU memory: planned" in ended.stderr
    assert re.search(r"gpu +state slots +\S+ \S+ +16 sequences of 262144 tokens", ended.stderr), ended.stderr
    assert "Traceback" not in ended.stderr


@on_a_device
def test_a_gpu_that_others_have_filled_ends_with_78(tmp_path: Path) -> None:
    import torch

    taken = torch.empty(max(0, device_free() - 2**30), dtype=torch.uint8, device="cuda")
    command = [sys.executable, "-m", "carousel_server", "serve", "--device", "cuda", "--port", "0", "--admin-port", "0"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    finally:
        del taken
        torch.cuda.empty_cache()
    assert ended.returncode == 78, ended.stderr
    assert "does not fit: GPU memory: planned" in ended.stderr
