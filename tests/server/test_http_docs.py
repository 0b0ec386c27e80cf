"""The examples of the documentation run as they are written, against the embedded model. They need curl and jq."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.http_kit import Running, running

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def speaking() -> Iterator[Running]:
    with running(engine="torch") as found:
        yield found
        found.idle(30)


def printed(server: Running, page: str) -> dict[str, str]:
    """What the page's examples print, by language: the blocks of one language are one program."""
    blocks = BLOCK.findall((DOCS / page).read_text())
    assert {language for language, _ in blocks} == {"bash", "python"}
    found = {}
    for language, command in (("bash", ["bash", "-euo", "pipefail", "-c"]), ("python", [sys.executable, "-c"])):
        program = "\n".join(code for kind, code in blocks if kind == language)
        environment = {**os.environ, "URL": server.url}
        ran = subprocess.run([*command, program], capture_output=True, text=True, timeout=120, env=environment)
        assert ran.returncode == 0, ran.stderr
        found[language] = ran.stdout
    return found


def replies(text: str) -> list[dict[str, object]]:
    """The JSON values of a text, one behind the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        found.append(value)
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


def test_the_examples_of_the_api_page(speaking: Running) -> None:
    found = printed(speaking, "api.md")
    assert len(replies(found["bash"])) == 2
    assert "error" not in found["bash"]
    assert "Ada" in found["bash"].rpartition('"choices"')[2]
    assert "Ada" in found["python"].splitlines()[-1]


def test_the_examples_of_the_page_on_tools(speaking: Running) -> None:
    found = printed(speaking, "tool-calling.md")
    call, answer = replies(found["bash"])
    assert "Oslo" in json.dumps(call)
    assert "21" in answer["choices"][0]["message"]["content"]  # type: ignore[index]
    assert found["python"] == "get_weather city='Oslo'\n"
