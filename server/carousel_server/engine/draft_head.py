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
        self.forward, self.control, self.room, self.valid = forward, control, room, valid

        def ints(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=control.device)

        self._where, self._source, self._single = ints(1 + room), ints(room), ints(STEP_ROWS, 2)
        self.rows = self._where, self._source, self._single
        self._drafted, self._first = ints(1), ints(1)

    def take_waiting(self) -> Tensor:
        """Its layer over the rows that wait, after which none does; returns their streams."""
        kept = self.forward.state.streams
        return self._pass(kept.view(-1, *kept.shape[2:]), self._source, self._where, self.room)

    def propose(self, drafts: int) -> None:
        """Write `drafts` tokens behind the step's first: from the waiting rows, then from its own, one by one."""
        streams, first = self.take_waiting(), self.forward.buffers.draft_streams[:1]
        self._put(streams[-1:], 1)
        if drafts > 1:
            first.copy_(streams[-1:])
        for i in range(1, drafts):
            self._put(self._pass(first, self._first, self._single[i], 1), i + 1)

    def _pass(self, hidden: Tensor, source: Tensor, where: Tensor, rows: int) -> Tensor:
        """The head's layer over rows whose input is hidden[source]; returns their streams."""
        f = self.forward
        b, slots, w = f.buffers, f.state.draft, f.weights.draft
        assert slots is not None
        assert w is not None
        streams = b.draft_streams[:rows]
        mtp_input.fuse(
            hidden, source, f.state.tokens, where, f.weights.embedding, w.embedding_scale, w.hidden_scale,
            w.fc_embedding, w.fc_hidden, streams, (b.fuse[0][:rows], b.fuse[1][:rows], b.fuse[2][:rows]), f.config.eps,
        )  # fmt: skip
        f.layer(len(f.weights.layers), w.layer, slots, streams, where)
        return streams

    def _put(self, last: Tensor, behind: int) -> None:
        """The best token after a row of streams becomes the draft `behind` places after the step's first."""
        f = self.forward
        b, w = f.buffers, f.weights.draft
        assert w is not None
        f.logits(last, w.mixer, b.draft_logits)
        head.best(b.draft_logits, self.valid, self._drafted, (b.best[0][:1], b.best[1][:1]))
        step.put(self.control, f.state.tokens, self._drafted, behind)
