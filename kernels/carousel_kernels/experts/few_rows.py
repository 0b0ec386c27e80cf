"""Router, routed and shared experts of a few rows, see `router.reference` and `reference`."""

import math
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from carousel_kernels.scratch import Scratch


class Transposed:
    """Experts as [in, out] in float32: views where they are float32 already, else widened when they are used."""

    def __init__(self, experts: Sequence[Tensor]) -> None:
        self._experts = experts
        self._views = [e.t() for e in experts] if experts[0].dtype == torch.float32 else None

    def __getitem__(self, at: int) -> Tensor:
        return self._experts[at].to(torch.float32).t() if self._views is None else self._views[at]


class Experts:
    """A call computes `out` [T, H] from x [T, H].

    Every expert that some row chose runs on all rows, with a weight of 0 for those that did not choose it: its
    matrices are read once, where they are.
    """

    def __init__(
        self,
        scratch: Scratch,
        x: Tensor,
        project: Tensor,
        gate_up: Sequence[Tensor],
        down: Sequence[Tensor],
        shared_down: Tensor,
        top: int,
    ) -> None:
        rows, count, inner = x.shape[0], len(gate_up), shared_down.shape[1]
        self.x, self.top, self.project = x, top, project.t()
        self.projected = scratch("experts.projected", project.shape[0])
        self.router = self.projected[:, :count]
        self.opening = self.projected[:, -1:]
        self.gate = self.projected[:, count : count + inner]
        self.up = self.projected[:, count + inner : -1]
        self.shared_down = shared_down.t()
        self.gate_up, self.down = Transposed(gate_up), Transposed(down)
        most, wide = min(count, rows * top), gate_up[0].shape[0]
        hidden = scratch("experts.hidden", most, wide).transpose(0, 1)
        gates, ups = hidden[..., : wide // 2], hidden[..., wide // 2 :]
        self.hidden = hidden.unbind(0)
        self.inner = gates.unbind(0)
        self.shares = array("f", bytes(4 * most * rows))
        shares = torch.frombuffer(self.shares, dtype=torch.float32).view(most, rows, 1)
        self.first = [(gates[:n], ups[:n], shares[:n]) for n in range(most + 1)]  # by the number of experts in use
        self.out = scratch("experts.out", x.shape[1])

    def __call__(self) -> None:
        """Compute `out`."""
        torch.mm(self.x, self.project, out=self.projected)
        used = self._route()
        for expert, hidden in zip(used, self.hidden, strict=False):
            torch.mm(self.x, self.gate_up[expert], out=hidden)
        gates, ups, shares = self.first[len(used)]
        silu(gates, inplace=True).mul_(ups).mul_(shares)
        inner = silu(self.gate, inplace=True).mul_(self.up).mul_(self.opening.sigmoid_())
        torch.mm(inner, self.shared_down, out=self.out)
        for expert, inner in zip(used, self.inner, strict=False):
            self.out.addmm_(inner, self.down[expert])

    def _route(self) -> list[int]:
        """The experts in use; their weights, one for each row, are left in `shares`."""
        rows = self.router.tolist()
        weights: dict[int, list[float]] = {}
        for t, logits in enumerate(rows):
            # a reversed sort is stable too: of equal logits the lower id
            chosen = sorted(range(len(logits)), key=logits.__getitem__, reverse=True)[: self.top]
            best = logits[chosen[0]]
            grown = [math.exp(logits[e] - best) for e in chosen]
            total = sum(grown)
            for expert, weight in zip(chosen, grown, strict=True):
                if expert not in weights:
                    weights[expert] = [0.0] * len(rows)
                weights[expert][t] = weight / total
        flat = [weight for each in weights.values() for weight in each]
        self.shares[: len(flat)] = array("f", flat)
        return list(weights)
