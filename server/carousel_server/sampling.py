"""The sampler state of one request: which draw is next, and what was said before. The tensor math is the kernels'."""

from collections.abc import Sequence

import torch

from carousel_server.engine.protocol import SamplerParams
from carousel_server.philox import uniform
from carousel_server.turn import RngState, Settings


class Sampler:
    """Owned by one request. `params` looks, `accept` moves on; nothing else draws.

    Penalty counts come from the full rendered prompt and then from what was generated.
    """

    def __init__(self, settings: Settings, prompt: Sequence[int], rng: RngState, vocab: int) -> None:
        self.rng = rng
        self._settings = settings
        self._random = settings.temperature > 0.0
        self._counts: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None
        penalised = (
            settings.presence_penalty != 0.0 or settings.frequency_penalty != 0.0 or settings.repetition_penalty != 1.0
        )
        if penalised or settings.logit_bias:
            if penalised:
                ids = torch.tensor(list(prompt), dtype=torch.int64)
                self._counts = torch.bincount(ids, minlength=vocab).to(torch.int32)
            if settings.logit_bias:
                self._bias = torch.zeros(vocab, dtype=torch.float32)
                for token, value in settings.logit_bias.items():
                    self._bias[token] = value
        self._constant = None if self._random or penalised else self._build(0.0, None)

    @property
    def plain_greedy(self) -> bool:
        """Whether drafts may be verified for this request."""
        return self._constant is not None and self._constant.plain_greedy

    def params(self, mask: torch.Tensor | None = None) -> SamplerParams:
        """The next selection's parameters; asking twice gives the same."""
        if self._constant is not None and mask is None:
            return self._constant
        return self._build(uniform(self.rng.seed, self.rng.draws) if self._random else 0.0, mask)

    def accept(self, token: int) -> None:
        """A token was selected with the parameters last asked for: its draw is spent, its count is up."""
        if self._random:
            self.rng = RngState(self.rng.seed, self.rng.draws + 1)
        if self._counts is not None:
            self._counts[token] += 1

    def _build(self, draw: float, mask: torch.Tensor | None) -> SamplerParams:
        s = self._settings
        return SamplerParams(
            temperature=s.temperature,
            top_k=s.top_k,
            top_p=s.top_p,
            min_p=s.min_p,
            uniform=draw,
            presence_penalty=s.presence_penalty,
            frequency_penalty=s.frequency_penalty,
            repetition_penalty=s.repetition_penalty,
            counts=self._counts,
            bias=self._bias,
            mask=mask,
            top_logprobs=s.top_logprobs,
        )
