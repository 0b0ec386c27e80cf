"""The draft head in a decode step: over the rows that wait for it, then over its own drafts. Captured with the step.

It needs the token behind a row, so a row's streams wait in the slot until a later step. `control` is the step's.
"""

import torch
from carousel_kernels.head import triton as head
from carousel_kernels.mtp_input import triton as mtp_input
from carousel_kernels.step import triton as step
from torch import Tensor

from carousel_server.allocations import STEP_ROWS
from carousel_server.engine.gpu_forward import Forward


class DraftHead:
    """`room`: rows that its first pass takes, so as many may wait. `rows` are those of its passes, for `step.begin`."""

    def __init__(self, forward: Forward, control: Tensor, *, room: int, valid: int) -> None:
        weights, slots = forward.weights.draft, forward.state.draft
        assert weights is not None
        assert slots is not None
        self.forward, self.weights, self.slots = forward, weights, slots
        self.control, self.room, self.valid = control, room, valid

        def ints(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=control.device)

        self._where, self._source, self._single = ints(1 + room), ints(room), ints(STEP_ROWS, 2)
        self.rows = self._where, self._source, self._single
        self._drafted, self._first = ints(1), ints(1)

    def take_waiting(self) -> None:
        """Only what later rows need of those that wait, after which none does: no attention, no expert."""
        streams = self._fuse(self._waiting(), self._source, self._where, self.room)
        self.forward.remember(self.weights.layer, self.slots, streams, self._where)

    def propose(self, drafts: int) -> None:
        """Write `drafts` tokens behind the step's first: from the waiting rows, then from its own, one by one."""
        streams = self._pass(self._waiting(), self._source, self._where, self.room)
        first = self.forward.buffers.draft_streams[:1]
        self._put(streams[-1:], 1)
        if drafts > 1:
            first.copy_(streams[-1:])
        for i in range(1, drafts):
            self._put(self._pass(first, self._first, self._single[i], 1), i + 1)

    def _waiting(self) -> Tensor:
        """The kept streams of all slots, of which `_source` names those that wait."""
        return self.forward.state.streams.flatten(0, 1)

    def _pass(self, hidden: Tensor, source: Tensor, where: Tensor, rows: int) -> Tensor:
        """The head's layer over rows whose input is hidden[source]; returns their streams."""
        f, streams = self.forward, self._fuse(hidden, source, where, rows)
        f.layer(len(f.weights.layers), self.weights.layer, self.slots, streams, where)
        return streams

    def _fuse(self, hidden: Tensor, source: Tensor, where: Tensor, rows: int) -> Tensor:
        """The streams with which the rows enter the head's layer."""
        f, w = self.forward, self.weights
        b = f.buffers
        streams = b.draft_streams[:rows]
        mtp_input.fuse(
            hidden, source, f.state.tokens, where, f.weights.embedding, w.embedding_scale, w.hidden_scale,
            w.fc_embedding, w.fc_hidden, streams, (b.fuse[0][:rows], b.fuse[1][:rows], b.fuse[2][:rows]), f.config.eps,
        )  # fmt: skip
        return streams

    def _put(self, last: Tensor, behind: int) -> None:
        """The best token after a row of streams becomes the draft `behind` places after the step's first."""
        f, w = self.forward, self.weights
        b = f.buffers
        f.logits(last, w.mixer, b.draft_logits, w.head, w.head_scale)
        head.best(b.draft_logits, self.valid, self._drafted, (b.best[0][:1], b.best[1][:1]))
        step.put(self.control, f.state.tokens, self._drafted, behind)
