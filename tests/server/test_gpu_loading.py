"""Experts that cannot be loaded while the server answers already: the process says so and ends, whether or not anyone
asks it for anything. The GPU engine's kernels are interpreted, its experts come to a CPU in place of the GPU."""

import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from carousel_server.engine.byte_vocabulary import ByteVocabulary
from carousel_server.engine.protocol import EngineError
from carousel_server.engine.uniform import UniformEngine

from tests.server.core_kit import request
from tests.server.http_kit import TOKEN, wait_for
from tests.server.test_core_output import service

CHILD = """
import os
import sys
from functools import partial

import torch
from carousel_server.__main__ import main
from carousel_server.engine import expert_loading, gpu_start

def fail(place, parts):
    os.read(0, 1)  # until the test closes it
    raise {error}

expert_loading._copy = fail
gpu_start.start = partial(gpu_start.start, device=torch.device("cpu"))
torch.cuda.is_available = lambda: True
torch.cuda.mem_get_info = lambda: (2**33, 2**33)
sys.exit(main(sys.argv[1:]))
"""
ADVICE = "\\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
FAILURES = {
    70: (f"RuntimeError('CUDA error: an illegal memory access was encountered{ADVICE}')", "illegal memory access"),
    71: (f"torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB{ADVICE}')", "CUDA out of memory"),
}


@pytest.mark.parametrize("code", FAILURES)
def test_a_device_that_fails_while_experts_load_ends_the_process_without_a_request(tmp_path: Path, code: int) -> None:
    error, words = FAILURES[code]
    (tmp_path / "token").write_text(TOKEN)
    command = [sys.executable, "-c", CHILD.format(error=error), "serve", "--device", "cuda", "--host", "127.0.0.1"]
    command += ["--port", "0", "--admin-port", "0", "--admin-token", str(tmp_path / "token"), "--threads", "1"]
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        ports = json.loads(child.stdout.readline())
        clients, probe = (f"http://127.0.0.1:{ports[name]}" for name in ("port", "admin_port"))
        wait_for(lambda: httpx.get(f"{clients}/health").status_code == 200, 60)
        assert httpx.get(f"{clients}/health").json()["progress"] < 1
        assert httpx.get(f"{probe}/livez").status_code == 200
        with socket.create_connection(("127.0.0.1", ports["port"])), httpx.Client() as http:  # the ports wait for it
            child.stdin.close()
            wait_for(lambda: http.get(f"{probe}/livez").status_code == 503, 10)
            assert words in http.get(f"{probe}/livez").json()["message"]
        assert child.wait(30) == code
    finally:
        child.kill()
        child.wait()
    last = (tmp_path / "log").read_text().splitlines()[-1]  # what Kubernetes tells of the container
    assert re.match(f"carousel-server: the device is lost: the experts cannot be loaded: .*{words}", last), last


def test_work_beside_the_calls_that_fails_fails_who_has_begun_and_is_told_once() -> None:
    failed = threading.Event()

    class Broken(UniformEngine):
        def idle(self) -> None:
            if failed.is_set():
                raise EngineError("the experts cannot be loaded: CUDA error 700", fatal=True)

    told: list[Exception] = []
    found = service(Broken(ByteVocabulary()), on_fatal=told.append)
    turn = found.begin(request("hello"))
    assert found.alive
    failed.set()
    wait_for(lambda: not found.alive)
    assert [str(error) for error in told] == ["the experts cannot be loaded: CUDA error 700"]
    assert (found.state().phase, turn.record.phase) == ("failed", "failed")
    turn.close()
    assert found.state().reserved_bytes == 0
