"""The demo's client, run inside a pod: a chat with a session and a tool, and what is left after a restart.

python demo_client.py chat URL            -> one JSON line a finding, the last one has the session id
python demo_client.py ask URL SESSION     -> status and body of one more turn of that session
"""

import json
import sys
from typing import Any

import httpx

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
    },
}


def get_weather(city: str) -> dict[str, Any]:
    """The tool itself: it runs here, in the client."""
    return {"city": city, "temperature": 18, "condition": "sunny"}


def report(what: str, **facts: Any) -> None:
    print(json.dumps({"what": what, **facts}), flush=True)


def turn(http: httpx.Client, session_id: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": "chat", "session_id": session_id, "messages": messages}
    answer = http.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    return dict(answer.json()["choices"][0]["message"])


def stream(http: httpx.Client, session_id: str, text: str) -> tuple[str, int]:
    """One streamed turn: the answer and in how many pieces it came."""
    body = {"model": "chat", "session_id": session_id, "stream": True, "messages": [{"role": "user", "content": text}]}
    pieces: list[str] = []
    done = False
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise SystemExit(f"error event: {event}")
                pieces += [c["delta"]["content"] for c in event["choices"] if c["delta"].get("content")]
    if not done:
        raise SystemExit("the stream ended without [DONE]")
    return "".join(pieces), len(pieces)


def chat(url: str) -> None:
    with httpx.Client(base_url=url, timeout=60.0) as http:
        created = http.post("/v1/sessions", json={"tools": [WEATHER]})
        created.raise_for_status()
        session_id = created.json()["id"]
        text = "Hello! My name is Mara."
        answer, pieces = stream(http, session_id, text)
        report("turn", user=text, assistant=answer, pieces=pieces)
        text = "What is my name?"
        answer, pieces = stream(http, session_id, text)
        report("turn", user=text, assistant=answer, pieces=pieces)
        text = "What is the weather in Paris?"
        message = turn(http, session_id, [{"role": "user", "content": text}])
        calls = message.get("tool_calls") or []
        report("call", user=text, assistant=message.get("content"), calls=[c["function"] for c in calls])
        results = [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": json.dumps(get_weather(**json.loads(call["function"]["arguments"]))),
            }
            for call in calls
            if call["function"]["name"] == "get_weather"
        ]
        if not results:
            raise SystemExit(f"the model called no tool: {message}")
        message = turn(http, session_id, results)
        report("result", tool=json.loads(results[0]["content"]), assistant=message["content"])
        report("session", id=session_id)


def ask(url: str, session_id: str) -> None:
    body = {"model": "chat", "session_id": session_id, "messages": [{"role": "user", "content": "What is my name?"}]}
    answer = httpx.post(url + "/v1/chat/completions", json=body, timeout=60.0)
    report("asked", status=answer.status_code, body=answer.json())


if __name__ == "__main__":
    {"chat": chat, "ask": ask}[sys.argv[1]](*sys.argv[2:])
