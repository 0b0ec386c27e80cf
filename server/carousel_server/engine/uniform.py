"""The `uniform` test engine: letters without a model, for load and for tests of what stands above an engine.

The next letter is a function of every token before it and of the draw, so a state, a token or a draw that came from
another request changes the text.
"""

from carousel_server.engine.byte_vocabulary import ByteVocabulary
from carousel_server.engine.host import TOKEN_BYTES, HostEngine, HostSequence
from carousel_server.engine.protocol import EngineInfo, SamplerParams, Selected

_FIRST, _LETTERS = ord("a"), 26


class UniformEngine(HostEngine):
    """Never ends a reply by itself; the token limit does."""

    def __init__(
        self, vocabulary: ByteVocabulary, *, context_tokens: int = 8192, slots: int = 4, drafts: int = 0
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

    def _choose(self, seq: HostSequence, sampler: SamplerParams) -> Selected:
        draw = int(sampler.uniform * 2**24) if sampler.temperature > 0 else 0
        token = _FIRST + (seq.checksum + draw) % _LETTERS
        if sampler.top_logprobs is None:
            return Selected(token)
        return Selected(token, 0.0, ((token, 0.0),)[: sampler.top_logprobs])
