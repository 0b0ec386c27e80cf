"""The `scripted` test engine: the request gives the reply, so everything above an engine can be driven by any client.

When the last user message is a JSON object with `pieces`, each piece is one token of the reply: a string, or raw bytes
as `{"hex": "e282"}`. `delay_ms` is slept before each token, `prefill_ms` in each prefill chunk from where it is read.
`then` says what follows the pieces: `stop` (the default), `length` (the last piece again, until the token limit),
`error` (the engine fails), `lost` and `out_of_memory` (the device does, and the process ends), `stall` (tokens without
text, until someone cancels). Any other message is answered `ok`.
"""

import json
import re
import time
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from typing import Any

from carousel_server.engine.byte_vocabulary import ByteVocabulary
from carousel_server.engine.host import TOKEN_BYTES, HostEngine, HostSequence
from carousel_server.engine.protocol import EngineError, EngineInfo, SamplerParams, Selected

STALL_SECONDS = 0.01
END, STALL, REPEAT = -1, -2, -3
_FAILURES = {  # what the engine says, and whether the device is lost
    -4: ("the script asked for a failure", False),
    -5: ("CUDA error: the script lost the device", True),
    -6: ("CUDA out of memory: the script asked for too much", True),
}
_PREFILL_MS = re.compile(rb'"prefill_ms"\s*:\s*(\d{1,5})')
_THEN = {"stop": END, "stall": STALL, "length": REPEAT, "error": -4, "lost": -5, "out_of_memory": -6}


class ScriptedEngine(HostEngine):
    """See the module. `sleep` is time.sleep outside tests."""

    def __init__(
        self,
        vocabulary: ByteVocabulary,
        *,
        context_tokens: int = 8192,
        slots: int = 4,
        drafts: int = 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(
            EngineInfo(
                vocab_size=vocabulary.vocab_size,
                valid_tokens=vocabulary.valid_tokens,
                context_tokens=context_tokens,
                slots=slots,
                max_drafts=drafts,
                stop_tokens=vocabulary.stop_tokens,
                fixed_state_bytes=4096,
                token_state_bytes=TOKEN_BYTES,
            )
        )
        self._vocabulary = vocabulary
        self._sleep = sleep
        self._end = vocabulary.control_tokens["<|im_end|>"]
        self._silence = vocabulary.control_tokens["<|im_start|>"]

    def prefill(self, seq: HostSequence, tokens: Tokens[int]) -> None:
        """Feed prompt rows, as slowly as the script says once it is there to be read."""
        super().prefill(seq, tokens)
        seq.script, seq.at = None, 0
        found = _PREFILL_MS.search(self._text(seq))
        if found:
            self._sleep(int(found[1]) / 1000)

    def _choose(self, seq: HostSequence, sampler: SamplerParams) -> Selected:
        if seq.script is None:
            seq.script = self._compile(self._script(seq))
        script = seq.script
        delay = script[0]
        if delay:
            self._sleep(delay / 1000)
        token = script[min(1 + seq.at, len(script) - 1)]
        if token in _FAILURES:
            message, fatal = _FAILURES[token]
            raise EngineError(message, fatal=fatal)
        if token == STALL:
            self._sleep(STALL_SECONDS)
            token = self._silence
        elif token == REPEAT:
            token = script[-2] if len(script) > 2 else self._silence
        elif token == END:
            token = self._end
        if sampler.top_logprobs is None:
            return Selected(token)
        return Selected(token, 0.0, ((token, 0.0),)[: sampler.top_logprobs])

    def _compile(self, script: dict[str, Any]) -> list[int]:
        """Delay in ms, the pieces' tokens, and what follows them."""
        pieces = script.get("pieces", ["ok"])
        tokens = [self._vocabulary.piece(_content(piece)) for piece in pieces]
        return [int(script.get("delay_ms", 0)), *tokens, _THEN.get(script.get("then", "stop"), END)]

    def _script(self, seq: HostSequence) -> dict[str, Any]:
        """The last user message if it is a script, else nothing."""
        for turn in reversed(self._text(seq).split(b"\x01")):
            body = turn.partition(b"\x00")[0]
            if not body.startswith(b"user\n") or body.startswith(b"user\n<tool_response>"):
                continue
            try:
                found = json.loads(body[5:])
            except ValueError:
                return {}
            return found if isinstance(found, dict) and isinstance(found.get("pieces"), list) else {}
        return {}

    def _text(self, seq: HostSequence) -> bytes:
        """The rows as bytes, turns begun by 1 and ended by 0."""
        end, start = self._end, self._silence
        return b"".join(
            b"\x00" if t == end else b"\x01" if t == start else self._vocabulary.token_bytes(t) for t in seq.tokens
        )


def _content(piece: Any) -> bytes:
    if isinstance(piece, dict):
        return bytes.fromhex(str(piece.get("hex", "")))
    return str(piece).encode()
