"""The memory of a real server on the CPU against its own plan."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.server.http_kit import TOKEN
from tests.server.test_http_process import process


def most_resident(pid: int) -> int:
    """Bytes of memory that a process held at its peak, pages of its libraries included."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return 1024 * int(found[1])


def test_a_server_holds_no_more_than_it_planned_at_rest_and_under_load(tmp_path: Path) -> None:
    def chat(number: int) -> int:
        words = f"The {number} ships lie in the harbour until the evening wind comes. " * 40
        body = {"model": "chat", "messages": [{"role": "user", "content": words}], "max_tokens": 8}
        return server.http.post("/v1/chat/completions", json=body).status_code

    flags = ("--engine", "torch", "--device", "cpu", "--threads", "1", "--no-access-log")
    with process(tmp_path, *flags) as server, ThreadPoolExecutor(4) as clients:
        server.http.timeout = 200
        planned = server.probe.get("/admin/plan", headers={"authorization": f"Bearer {TOKEN}"}).json()["hostBytes"]
        at_rest = most_resident(server.child.pid)
        assert set(clients.map(chat, range(4))) == {200}
        loaded = most_resident(server.child.pid)
    print(f"planned {planned >> 20} MiB, {at_rest >> 20} at rest, {loaded >> 20} at most under load")
    assert planned / 4 < at_rest <= loaded <= planned
