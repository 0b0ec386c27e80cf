"""Selections by the sampling kernels beside their definition, on whichever device."""

from dataclasses import dataclass, field

import torch
from carousel_kernels import sampling
from carousel_kernels.sampling import triton as kernels
from torch import Tensor

SLOT, SLOTS = 1, 2


@dataclass(frozen=True)
class Case:
    """One selection after the rows of `tokens`."""

    logits: Tensor  # [V] fp32
    valid: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    uniform: float = 0.5
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    tokens: list[int] = field(default_factory=list)  # counted if there are any
    bias: Tensor | None = None
    mask: Tensor | None = None

    def adjusted(self) -> Tensor:
        """[valid] fp32 by the definition."""
        counts = torch.bincount(torch.tensor(self.tokens, dtype=torch.int64), minlength=self.logits.shape[0])
        return sampling.adjust(
            self.logits,
            self.valid,
            mask=self.mask,
            bias=self.bias,
            counts=counts.int() if self.tokens else None,
            repetition=self.repetition,
            frequency=self.frequency,
            presence=self.presence,
        )

    def wanted(self) -> int:
        """The token by the definition."""
        return int(
            sampling.choose(
                self.adjusted(),
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                uniform=self.uniform,
            )
        )

    def found(self, work: kernels.Work) -> int:
        """The token by the kernels. What they must not read is NaN or a token that would be counted."""
        device, vocab, rows = work.keys.device, self.logits.shape[0], len(self.tokens)
        logits = torch.full((SLOTS, vocab), torch.nan)
        logits[SLOT, : self.valid] = self.logits[: self.valid]
        tokens = torch.zeros(SLOTS, rows + 9, dtype=torch.int64)
        tokens[SLOT, :rows] = torch.tensor(self.tokens, dtype=torch.int64)
        work.bias.fill_(torch.nan) if self.bias is None else work.bias.copy_(self.bias)
        work.mask.zero_() if self.mask is None else work.mask.copy_(self.mask)
        uses = kernels.COUNTS * bool(self.tokens)
        uses += kernels.BIAS * (self.bias is not None) + kernels.MASK * (self.mask is not None)
        numbers = {name: getattr(self, name) for name in kernels.PARAMS if name != "uses"} | {"uses": uses}
        params = torch.tensor([numbers[name] for name in kernels.PARAMS], dtype=torch.float64, device=device)
        control = torch.tensor([SLOT, rows - 1], device=device)
        out = torch.full((1,), -9, device=device)
        kernels.choose(control, params, tokens.to(device), logits.to(device), work, out, valid=self.valid)
        return int(out)


def adjusted(work: kernels.Work, valid: int) -> Tensor:
    """The logits that the kernels chose from, read back from their keys; 0 has no sign."""
    keys = work.keys[:valid].cpu()
    return torch.where(keys < 0, keys ^ 0x7FFFFFFF, keys).view(torch.float32)


def real_case(seed: int, vocab: int, valid: int) -> Case:
    """Every feature at once, with logits like a model's: few that matter, many that hardly do."""
    draw = torch.Generator().manual_seed(seed)

    def pick(*of: float) -> float:
        return of[int(torch.randint(0, len(of), (1,), generator=draw))]

    logits = torch.randn(vocab, generator=draw) * 2.5
    logits[torch.randint(0, valid, (40,), generator=draw)] += 12 * torch.rand(40, generator=draw)
    mask = torch.rand(vocab, generator=draw) < pick(0.01, 0.5, 0.9)
    return Case(
        logits=logits,
        valid=valid,
        temperature=pick(0.0, 0.3, 0.7, 1.0, 1.0, 1.5, 2.0),
        top_k=int(pick(0, 0, 1, 20, 40, 1000, vocab)),
        top_p=pick(0.1, 0.5, 0.8, 0.95, 0.999, 1.0),
        min_p=pick(0.0, 0.0, 0.02, 0.1),
        uniform=int(torch.randint(0, 2**24, (1,), generator=draw)) * 2.0**-24,
        repetition=pick(1.0, 1.1, 1.3),
        frequency=pick(0.0, 0.2, -0.5),
        presence=pick(0.0, 0.7),
        tokens=torch.randint(0, valid, (int(pick(0, 10, 3000)),), generator=draw).tolist(),
        bias=torch.randn(vocab, generator=draw) if pick(0, 1) else None,
        mask=mask if pick(0, 0, 1) else None,
    )
