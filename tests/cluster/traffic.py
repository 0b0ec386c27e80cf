"""Turns of sessions through the Service, each answer checked against the rules. Runs inside a pod, on httpx alone.

    python traffic.py URL OPTIONS-JSON

Prints one JSON line an event and ends, with the counts, when /tmp/stop-traffic appears or after `seconds`. The servers
run the scripted engine, so that an answer, and how long it takes, is given by the request.
"""

import asyncio
import collections
import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx

STOP = Path("/tmp/stop-traffic")
RETRY = {429, 503}


class Traffic:
    """What was sent and what came back."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.options = options
        # What is sent to the address of a pod that has gone gets no answer: the next try goes to another.
        timeout, limits = httpx.Timeout(60, connect=2), httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits)
        self.counts: collections.Counter[str] = collections.Counter()
        self.violations: list[str] = []
        self.causes: collections.Counter[str] = collections.Counter()
        self.began = float(options["began"]) or time.time()

    def say(self, what: str, **facts: Any) -> None:
        print(json.dumps({"what": what, "at": round(time.time() - self.began, 2), **facts}), flush=True)

    def stopped(self) -> bool:
        return STOP.exists() or time.time() - self.began > float(self.options["seconds"])

    def judge(self, kind: str, status: int, headers: httpx.Headers, body: dict[str, Any]) -> None:
        """Count an answer, and keep it when no rule allows it."""
        self.counts[f"{kind} {status}"] += 1
        error = body.get("error", {})
        if status in RETRY:
            if "retry-after" not in headers:
                self.violations.append(f"{kind}: {status} without Retry-After: {body}")
        elif status == 410:
            self.causes[str(error.get("cause"))] += 1
            if error.get("code") != "session_lost" or error.get("cause") not in self.options["causes"]:
                self.violations.append(f"{kind}: 410 {error}, allowed causes: {self.options['causes']}")
        elif status not in (200, 201, 409):
            self.violations.append(f"{kind}: {status} {body}")

    def broken(self, kind: str, error: Exception) -> None:
        # With one pod there is a time without any: the Service refuses connections, and no request was taken.
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) and self.options["refused"]:
            self.counts[f"{kind} refused"] += 1
            return
        self.counts[f"{kind} broken"] += 1
        self.say("connection broken", kind=kind, why=type(error).__name__)
        if not self.options["broken"]:
            self.violations.append(f"{kind}: connection failed: {type(error).__name__} {error}")

    async def post(self, kind: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body; status 0 after a broken connection."""
        try:
            answer = await self.http.post(path, json=body)
            found = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            self.broken(kind, error)
            return 0, {}
        self.judge(kind, answer.status_code, answer.headers, found)
        return answer.status_code, found

    async def create(self, ordinal: int | None = None) -> str:
        """A session id, retrying while the rules say so, or until it is on this pod; '' when the traffic ended."""
        while not self.stopped():
            status, body = await self.post("create", "/v1/sessions", {})
            if status == 201 and ordinal in (None, int(body["id"].split(".")[0])):
                return str(body["id"])
            await asyncio.sleep(0.3)  # or the sessions of a pod that a node learns of late fill up the others
        return ""

    async def worker(self, number: int) -> None:
        """Turns of one session, again and again; a lost session is followed by a new one."""
        session, turns = await self.create(number % int(self.options["replicas"])), 0
        while session and not self.stopped():
            pieces = [f"w{number} ", f"t{turns}"]
            ask = {"role": "user", "content": json.dumps({"pieces": pieces, "delay_ms": 20})}
            body = {"model": "chat", "session_id": session, "messages": [ask]}
            status, found = await self.post("turn", "/v1/chat/completions", body)
            if status == 200:
                turns += 1
                text = found["choices"][0]["message"]["content"]
                if text != "".join(pieces):
                    self.violations.append(f"turn: {text!r} instead of {pieces}")
                self.say("turn", session=session, turns=turns)
            elif status == 410:
                self.say("lost", session=session, turns=turns, error=found["error"])
                session, turns = await self.create(), 0
            await asyncio.sleep(float(self.options["pause"]))

    async def stream(self, number: int) -> None:
        """Long streams, one after another: each must end by itself with [DONE]."""
        ordinal: int | None = number % int(self.options["replicas"])
        while not self.stopped():
            session, ordinal = await self.create(ordinal), None
            if not session:
                return
            count = int(self.options["stream_pieces"])
            content = json.dumps({"pieces": [f"{i} " for i in range(count)], "delay_ms": 250})
            ask = {"role": "user", "content": content}
            body = {"model": "chat", "session_id": session, "stream": True, "messages": [ask]}
            try:
                async with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
                    if answer.status_code != 200:
                        await answer.aread()
                        self.judge("stream", answer.status_code, answer.headers, answer.json())
                        await asyncio.sleep(0.3)
                        continue
                    await self.read_stream(session, answer, count)
            except httpx.HTTPError as error:
                self.broken("stream", error)
                self.say("stream broken", session=session)
                await asyncio.sleep(0.3)

    async def read_stream(self, session: str, answer: httpx.Response, count: int) -> None:
        pieces, finish, done, failure = 0, None, False, None
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                failure = event.get("error") or failure
                for choice in event.get("choices", []):
                    finish = choice.get("finish_reason") or finish
                    if choice["delta"].get("content"):
                        pieces += 1
                        if pieces == 1:
                            self.say("stream open", session=session)
        self.counts["stream whole" if finish else "stream cut"] += 1
        self.say("stream end", session=session, pieces=pieces, finish=finish, error=failure)
        if not done:
            self.violations.append("stream: ended without [DONE]")
        if failure and failure.get("code") not in self.options["stream_errors"]:
            self.violations.append(f"stream: error event {failure}")
        if not failure and pieces != count:
            self.violations.append(f"stream: {pieces} of {count} pieces")

    async def run(self) -> None:
        tasks = [self.worker(number) for number in range(int(self.options["workers"]))]
        tasks += [self.stream(number) for number in range(int(self.options["streams"]))]
        await asyncio.gather(*tasks)
        counts, causes = dict(self.counts), dict(self.causes)
        self.say("end", counts=counts, causes=causes, violations=self.violations[:20])


DEFAULTS = {
    "began": 0,  # seconds since the epoch at which the timeline starts; 0: now
    "seconds": 300,
    "replicas": 1,  # the first sessions are spread over so many pods
    "workers": 3,
    "streams": 1,
    "stream_pieces": 40,
    "pause": 0.5,
    "causes": [],
    "broken": False,
    "refused": False,
    "stream_errors": [],
}

if __name__ == "__main__":
    STOP.unlink(missing_ok=True)
    asyncio.run(Traffic(sys.argv[1], DEFAULTS | json.loads(sys.argv[2])).run())
