"""Decode steps of the GPU engine: draft, verify, choose and count in one run of kernels, captured once for each width,
with and without the indexer of sparse attention; and once for each way to choose.

The host writes a few numbers, starts the graph and waits for five. Everything else is device data. A step under a
mask is two graphs, so that the mask can be brought over while the first one runs.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from carousel_kernels.head import triton as head
from carousel_kernels.sampling import log_probabilities
from carousel_kernels.sampling import triton as sampling
from carousel_kernels.step import triton as step
from torch import Tensor

from carousel_server.allocations import STEP_ROWS
from carousel_server.engine.draft_head import DraftHead
from carousel_server.engine.gpu_forward import Forward
from carousel_server.engine.protocol import SamplerParams

CONTROL = 4  # slot, position, token, rows waiting for the draft head; the numbers of a selection follow

# `greedy`: a step of any width, argmax; `sampled`: a step of one row and a selection; `forward`, `select`: its halves;
# `catch up`: no step, the draft head takes the rows that wait for it
Ending = Literal["greedy", "sampled", "forward", "select", "catch up"]


@dataclass(frozen=True)
class Outcome:
    """What a step chose: `chosen[i]` follows fed row i; the first `taken` rows are kept. `sampling.NAN` stands for NaN
    logits, `sampling.NONE` for none that may be chosen. `rated[i]`, if asked for: the log probability of `chosen[i]`,
    and the best ids with theirs."""

    taken: int
    chosen: tuple[int, ...]
    rated: tuple[tuple[float, tuple[tuple[int, float], ...]], ...] = ()


class Steps:
    """Runs steps of 1 to `drafts + 1` rows. Graphs live as long as this object: collecting one breaks a capture."""

    def __init__(self, forward: Forward, *, valid: int, stops: frozenset[int], drafts: int, graphs: bool) -> None:
        self.forward, self.valid, self.drafts = forward, valid, drafts
        self.room = drafts + 1  # rows that may wait for the draft head
        self.device = forward.state.tokens.device
        pinned = self.device.type == "cuda"

        def ints(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=self.device)

        numbers, vocab = CONTROL + len(sampling.PARAMS), forward.config.vocab
        self.host_control = torch.zeros(numbers, dtype=torch.int64, pin_memory=pinned)
        self.host_mask = torch.zeros(vocab, dtype=torch.uint8, pin_memory=pinned)
        self.host_result = torch.zeros(1 + STEP_ROWS, dtype=torch.int64, pin_memory=pinned)
        self.rating = log_probabilities.Best.empty(STEP_ROWS, vocab, self.device)
        self.host_rating = torch.zeros(self.rating.out.shape, dtype=torch.float64, pin_memory=pinned)
        self._set, self._got = self.host_control.numpy(), self.host_result.numpy()
        self._set_params = self._set[CONTROL:].view(np.float64)
        self.control, self.result, self.chosen = ints(numbers), ints(1 + STEP_ROWS), ints(STEP_ROWS)
        self.params = self.control[CONTROL:].view(torch.float64)
        self.work = sampling.Work.empty(vocab, self.device)
        self._bias: Tensor | None = None  # whose values the device has
        self.where = ints(1 + STEP_ROWS)
        self.draft_head = DraftHead(forward, self.control, room=self.room, valid=valid) if drafts else None
        self.stops = torch.tensor(sorted(stops) or [-2], dtype=torch.int64, device=self.device)
        self._graphs: dict[tuple[Ending, int, bool], torch.cuda.CUDAGraph] = {}
        if graphs:
            self._capture()

    def _capture(self) -> None:
        kinds: list[tuple[Ending, int, bool]] = [("select", 0, False)]
        kinds += [("catch up", 0, False)] if self.drafts else []
        for sparse in (False, True):
            kinds += [("greedy", width, sparse) for width in range(self.drafts + 1)]
            kinds += [("sampled", 0, sparse), ("forward", 0, sparse)]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for kind in kinds:  # compiles every kernel
                self._run(*kind)
            self._rate(self.forward.state.logits[:1], 0)
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

    def __call__(
        self, slot: int, position: int, token: int, *, waiting: int, drafts: int, top: int | None = None
    ) -> Outcome:
        """Feed `token` at `position` of a slot, with `drafts` proposals behind it; `waiting` rows lack in the draft
        head. `top`: rate that many of the best ids, None: not even the chosen ones."""
        self._set[:CONTROL] = (slot, position, token, waiting)
        if not drafts:
            self._make_room(waiting)
        self._start("greedy", drafts, self._sparse(position + drafts + 1))
        return self._outcome(self.forward.buffers.logits[: drafts + 1], top)

    def sample(self, slot: int, position: int, token: int, sampler: SamplerParams, *, waiting: int) -> Outcome:
        """Feed `token` at `position` of a slot and choose what follows."""
        self._set[:CONTROL] = (slot, position, token, waiting)
        self._prepare(sampler)
        self._make_room(waiting)
        sparse = self._sparse(position + 1)
        if sampler.mask is None:
            self._start("sampled", 0, sparse)
        else:
            self._start("forward", 0, sparse)
            self._allow(sampler.mask)
            self._start("select", 0, False)
        return self._outcome(self.forward.state.logits[slot : slot + 1], sampler.top_logprobs)

    def select(self, slot: int, position: int, sampler: SamplerParams) -> Outcome:
        """Choose what follows the slot's last row, at `position`, from its kept logits; nothing is taken."""
        self._set[:CONTROL] = (slot, position, 0, 0)
        self._prepare(sampler)
        if sampler.mask is not None:
            self._allow(sampler.mask)
        self._start("select", 0, False)
        return self._outcome(self.forward.state.logits[slot : slot + 1], sampler.top_logprobs)

    def _make_room(self, waiting: int) -> None:
        """Before a step without drafts, whose row waits behind the others. The step's control stays as it is: its copy
        to the device may not have run yet, and the step finds by itself that the room was full."""
        if self.draft_head is not None and waiting == self.room:
            self._start("catch up", 0, False)

    def _outcome(self, logits: Tensor, top: int | None) -> Outcome:
        """Wait for what was started; `logits` are its rows'."""
        rows = logits.shape[0]
        if top is not None:
            self._rate(logits, top)
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        taken, *chosen = self._got.tolist()
        rated = []
        for row in [] if top is None else self.host_rating[:rows].tolist():
            ids, values = row[1:][:top], row[1 + log_probabilities.MOST :][:top]
            rated.append((row[0], tuple((int(i), value) for i, value in zip(ids, values, strict=True))))
        return Outcome(taken, tuple(chosen[:rows]), tuple(rated))

    def _rate(self, logits: Tensor, top: int) -> None:
        """Started behind the graph while it runs, so that it need not be one."""
        chosen = self.result[1 : 1 + logits.shape[0]]
        log_probabilities.log_probabilities(logits, chosen, self.rating, valid=self.valid, top=min(top, self.valid))
        self.host_rating.copy_(self.rating.out, non_blocking=True)

    def _prepare(self, sampler: SamplerParams) -> None:
        """The numbers of a selection, and its bias if the device has another one."""
        uses = 0 if sampler.counts is None else sampling.COUNTS
        if sampler.mask is not None:
            uses |= sampling.MASK
        if sampler.bias is not None:
            uses |= sampling.BIAS
            if sampler.bias is not self._bias:
                self.work.bias.copy_(sampler.bias)
                self._bias = sampler.bias
        self._set_params[:] = (
            sampler.temperature, sampler.top_k, sampler.top_p, sampler.min_p, sampler.uniform,
            sampler.repetition_penalty, sampler.frequency_penalty, sampler.presence_penalty, uses,
        )  # fmt: skip

    def _allow(self, mask: Tensor) -> None:
        self.host_mask.copy_(mask)
        self.work.mask.copy_(self.host_mask, non_blocking=True)

    def _start(self, ending: Ending, drafts: int, sparse: bool) -> None:
        graph = self._graphs.get((ending, drafts, sparse))
        if graph is None:
            self._run(ending, drafts, sparse)
        else:
            graph.replay()

    def _run(self, ending: Ending, drafts: int, sparse: bool) -> None:
        s = self.forward.state
        self.control.copy_(self.host_control, non_blocking=True)
        if ending == "catch up":
            self._catch_up()
            return
        if ending != "select":
            self._feed(ending, drafts, sparse)
        if ending in ("sampled", "select"):
            sampling.choose(
                self.control, self.params, s.tokens, s.logits, self.work, self.result[1:2], valid=self.valid
            )
        if ending != "forward":
            self.host_result.copy_(self.result, non_blocking=True)

    def _catch_up(self) -> None:
        assert self.draft_head is not None
        f, rows = self.forward, self.draft_head.rows
        step.begin(self.control, f.state.tokens, self.where, f.pool.tick, rows=0, draft=rows, kept=STEP_ROWS)
        self.draft_head.take_waiting()

    def _feed(self, ending: Ending, drafts: int, sparse: bool) -> None:
        """The rows through the model, up to their kept logits; with the argmax of each for a greedy step."""
        f, rows = self.forward, drafts + 1
        f.sparse = sparse
        b, s, drafting = f.buffers, f.state, self.draft_head if drafts else None
        draft = None if drafting is None else drafting.rows
        step.begin(self.control, s.tokens, self.where, f.pool.tick, rows=rows, draft=draft, kept=STEP_ROWS)
        if drafting is not None:
            drafting.propose(drafts)
        streams = b.streams[:rows]
        step.embed(s.tokens, self.where, f.weights.embedding, streams)
        f.layers(streams, self.where)
        logits = b.logits[:rows]
        f.logits(streams, f.weights.mixer, logits)
        if ending == "greedy":
            head.best(logits, self.valid, self.chosen[:rows], (b.best[0][:rows], b.best[1][:rows]))
        step.commit(self.control, s.tokens, self.chosen, self.stops, s.applied, self.result, rows=rows)
        room = 1 if drafts else self.room
        step.keep(self.control, self.result, logits, s.logits, streams, s.streams, room=room)
