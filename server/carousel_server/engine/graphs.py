"""Decode steps of the GPU engine: draft, verify, choose and count in one run of kernels, captured once for each width,
with and without the indexer of sparse attention.

The host writes four numbers, starts the graph and waits for five. Everything else is device data.
"""

from dataclasses import dataclass

import torch
from carousel_kernels.head import triton as head
from carousel_kernels.mtp_input import triton as mtp_input
from carousel_kernels.step import triton as step
from torch import Tensor

from carousel_server.allocations import STEP_ROWS
from carousel_server.engine.gpu_forward import Forward


@dataclass(frozen=True)
class Outcome:
    """What a step chose: `chosen[i]` follows fed row i; the first `taken` rows are kept. -1 stands for NaN logits."""

    taken: int
    chosen: tuple[int, ...]


class Steps:
    """Runs steps of 1 to `drafts + 1` rows. Graphs live as long as this object: collecting one breaks a capture."""

    def __init__(self, forward: Forward, *, valid: int, stops: frozenset[int], drafts: int, graphs: bool) -> None:
        self.forward, self.valid, self.drafts = forward, valid, drafts
        self.device = forward.state.tokens.device
        pinned = self.device.type == "cuda"

        def ints(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=self.device)

        self.host_control = torch.zeros(4, dtype=torch.int64, pin_memory=pinned)
        self.host_result = torch.zeros(1 + STEP_ROWS, dtype=torch.int64, pin_memory=pinned)
        self._set, self._got = self.host_control.numpy(), self.host_result.numpy()
        self.control, self.result, self.chosen = ints(4), ints(1 + STEP_ROWS), ints(STEP_ROWS)
        self.where, self.draft_where, self.source, self.single = (
            ints(1 + STEP_ROWS),
            ints(1 + STEP_ROWS),
            ints(STEP_ROWS),
            ints(STEP_ROWS, 2),
        )
        self.drafted, self.last = ints(1), ints(1)
        self.stops = torch.tensor(sorted(stops) or [-2], dtype=torch.int64, device=self.device)
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        if graphs:
            self._capture()

    def _capture(self) -> None:
        kinds = [(width, sparse) for width in range(self.drafts + 1) for sparse in (False, True)]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for kind in kinds:  # compiles every kernel
                self._run(*kind)
        torch.cuda.synchronize()
        pool = torch.cuda.graph_pool_handle()
        for kind in kinds:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._run(*kind)
            self._graphs[kind] = graph
        torch.cuda.synchronize()

    def _sparse(self, end: int) -> bool:
        """Does any row before `end` see more blocks than it may keep?"""
        c = self.forward.config
        return end // c.index_ratio > c.index_blocks

    def __call__(self, slot: int, position: int, token: int, *, waiting: int, drafts: int) -> Outcome:
        """Feed `token` at `position` of a slot, with `drafts` proposals behind it; `waiting` rows lack in the draft
        head."""
        self._set[:] = (slot, position, token, waiting)
        kind = (drafts, self._sparse(position + drafts + 1))
        graph = self._graphs.get(kind)
        if graph is None:
            self._run(*kind)
        else:
            graph.replay()
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        taken, *chosen = self._got.tolist()
        return Outcome(taken, tuple(chosen[: drafts + 1]))

    def _run(self, drafts: int, sparse: bool) -> None:
        f, rows = self.forward, drafts + 1
        f.sparse = sparse
        b, s = f.buffers, f.state
        self.control.copy_(self.host_control, non_blocking=True)
        first = self.drafts + 1
        draft = (self.draft_where, self.source[:first], self.single) if drafts else None
        step.begin(self.control, s.tokens, self.where, f.pool.tick, rows=rows, draft=draft, kept=STEP_ROWS)
        if drafts:
            self._draft(drafts, first)
        streams = b.streams[:rows]
        step.embed(s.tokens, self.where, f.weights.embedding, streams)
        f.layers(streams, self.where)
        logits = b.logits[:rows]
        f.logits(streams, f.weights.mixer, logits)
        head.best(logits, self.valid, self.chosen[:rows], (b.best[0][:rows], b.best[1][:rows]))
        step.commit(self.control, s.tokens, self.chosen, self.stops, s.applied, self.result, rows=rows)
        step.keep(self.control, self.result, logits, s.logits, streams, s.streams)
        self.host_result.copy_(self.result, non_blocking=True)

    def _draft(self, drafts: int, first: int) -> None:
        """The draft head over the waiting rows, then over its own drafts, one by one."""
        f = self.forward
        b, s, head_weights = f.buffers, f.state, f.weights.draft
        assert head_weights is not None
        assert s.draft is not None
        kept = s.streams.view(-1, *s.streams.shape[2:])
        for i in range(drafts):
            rows = first if i == 0 else 1
            streams = b.draft_streams[:rows]
            where = self.draft_where[: 1 + rows] if i == 0 else self.single[i]
            hidden, source = (kept, self.source[:rows]) if i == 0 else (b.draft_streams, self.last)
            work = tuple(t[:rows] for t in b.fuse)
            mtp_input.fuse(
                hidden, source, s.tokens, where, f.weights.embedding, head_weights.embedding_scale,
                head_weights.hidden_scale, head_weights.fc_embedding, head_weights.fc_hidden, streams,
                (work[0], work[1], work[2]), f.config.eps,
            )  # fmt: skip
            f.layer(len(f.weights.layers), head_weights.layer, s.draft, streams, where)
            last = streams[rows - 1 : rows]
            f.logits(last, head_weights.mixer, b.draft_logits)
            head.best(b.draft_logits, self.valid, self.drafted, (b.best[0][:1], b.best[1][:1]))
            step.put(self.control, s.tokens, self.drafted, i + 1)
            if i == 0 and drafts > 1:
                self._carry(b.draft_streams, rows)

    def _carry(self, streams: Tensor, rows: int) -> None:
        """The last row's streams go first: they are the hidden input of the next draft."""
        if rows > 1:
            streams[0].copy_(streams[rows - 1])
