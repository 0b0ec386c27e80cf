"""From logits to a token on the GPU, without a host decision: what `reference.adjust` and `reference.choose` say.

Top-k and top-p are searches for a cut: the highest logit that enough ids reach, by number for top-k and by mass for
top-p. A pass narrows the cut by some bits of the logit's ordered pattern: it adds up, for each of `ways` cuts, how many
ids reach it and their mass. Masses are whole numbers, so sums by atomic additions are exact and always the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import PDL, chain, tile, when
from carousel_kernels.sampling.reference import UNIT

NAN, NONE = -1, -2  # instead of a token: a logit is no number, or every one is -inf

# float64 numbers of one selection, in this order
PARAMS = ("temperature", "top_k", "top_p", "min_p", "uniform", "repetition", "frequency", "presence", "uses")
COUNTS, BIAS, MASK = 1, 2, 4  # bits of `uses`
_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P, _UNIFORM, _REPETITION, _FREQUENCY, _PRESENCE, _USES = map(tl.constexpr, range(9))
_COUNTS, _BIAS, _MASK = tl.constexpr(COUNTS), tl.constexpr(BIAS), tl.constexpr(MASK)
_UNIT, _NAN, _NONE = tl.constexpr(UNIT), tl.constexpr(NAN), tl.constexpr(NONE)

# int64 numbers that the searches leave for the kernels behind them: the mass of all ids; top-k's cut, how many of the
# ids at it are kept and the mass of one; the mass that top-p must reach, 0 if it is off; its cut, ids and mass
FOUND = 8
_TOTAL, _K_CUT, _K_SPARE, _K_EACH, _P_GOAL, _CUT, _SPARE, _EACH = map(tl.constexpr, range(8))


@dataclass(frozen=True)
class Work:
    """Device buffers of a selection, for one row. `bias` and `mask` are given by the host, the rest is between
    kernels."""

    bias: Tensor  # [V] fp32
    mask: Tensor  # [V] uint8, not 0 = allowed
    counts: Tensor  # [V] int32
    keys: Tensor  # [V] int32: adjusted logits as whole numbers of the same order
    mass: Tensor  # [V] int64
    best: Tensor  # [tiles] fp32
    ids: Tensor  # [tiles] int32
    above: Tensor  # [tiles] int64: mass above the cut
    equal: Tensor  # [tiles] int64: ids at the cut
    sums: Tensor  # [2, 1 + passes, 2, ways] int64: of both searches, ids and mass that reach each cut of a pass
    at: Tensor  # [2, 1 + passes, 3] int64: lowest cut of a pass, ids and mass above its highest
    found: Tensor  # [FOUND] int64
    width: int  # of a tile

    @classmethod
    def empty(cls, vocab: int, device: torch.device, *, width: int | None = None, bits: int = 4) -> "Work":
        """Buffers for logits of `vocab` ids; a pass of a search finds so many bits of its cut."""
        width = width or tile(vocab, 1024, 65536)
        tiles, passes, ways = -(-vocab // width), -(-32 // bits), 1 << bits

        def make(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        sums, at = make(2, 1 + passes, 2, ways), make(2, 1 + passes, 3)
        sums[:, 0, :, 0] = 2**62  # before the first pass: every id reaches the lowest cut, none the others
        at[:, 0, 0] = -(2**31)
        return cls(
            bias=make(vocab, dtype=torch.float32),
            mask=make(vocab, dtype=torch.uint8),
            counts=make(vocab, dtype=torch.int32),
            keys=make(vocab, dtype=torch.int32),
            mass=make(vocab),
            best=make(tiles, dtype=torch.float32),
            ids=make(tiles, dtype=torch.int32),
            above=make(tiles),
            equal=make(tiles),
            sums=sums,
            at=at,
            found=make(FOUND),
            width=width,
        )

    def passes(self) -> Iterator[tuple[int, int, int]]:
        """Of a search: (number, shift of the pass before, its shift). A cut moves by whole `1 << shift`."""
        count, bits = self.at.shape[1] - 1, self.sums.shape[3].bit_length() - 1
        shifts = [max(0, 32 - bits * i) for i in range(1 + count)]
        return ((i, shifts[i - 1], shifts[i]) for i in range(1, 1 + count))


@triton.jit
def _clear(
    p_params, p_counts, p_sums, p_found, V, sums, search, WAYS: tl.constexpr, BS: tl.constexpr, BV: tl.constexpr
):  # fmt: skip
    chain()
    i_v = tl.program_id(0)
    uses = tl.load(p_params + _USES).to(tl.int32)
    o_v = i_v * BV + tl.arange(0, BV)
    tl.store(p_counts + o_v, tl.zeros([BV], tl.int32), mask=when(o_v < V, (uses & _COUNTS) > 0))
    if i_v == 0:
        o_s = tl.arange(0, BS)
        # what stands before a first pass stays
        tl.store(p_sums + o_s, tl.zeros([BS], tl.int64), mask=(o_s < sums) & (o_s % search >= 2 * WAYS))
        tl.store(p_found + _TOTAL, 0)


@triton.jit
def _count(p_control, p_params, p_tokens, p_counts, capacity, BT: tl.constexpr):
    chain()
    if (tl.load(p_params + _USES).to(tl.int32) & _COUNTS) > 0:
        slot, position = tl.load(p_control), tl.load(p_control + 1)
        o_t = tl.program_id(0) * BT + tl.arange(0, BT)
        m_t = o_t <= position
        b_id = tl.load(p_tokens + slot * capacity + o_t, mask=m_t, other=0)
        tl.atomic_add(p_counts + b_id, 1, mask=m_t)


@triton.jit
def _adjust(
    p_control, p_params, p_logits, p_mask, p_bias, p_counts, p_keys, p_best, p_ids, V, valid, BV: tl.constexpr
):  # fmt: skip
    chain()
    i_v = tl.program_id(0)
    o_v = i_v * BV + tl.arange(0, BV)
    m_v = o_v < valid
    uses = tl.load(p_params + _USES).to(tl.int32)
    b_x = tl.load(p_logits + tl.load(p_control) * V + o_v, mask=m_v, other=-float("inf"))
    b_allowed = tl.load(p_mask + o_v, mask=when(m_v, (uses & _MASK) > 0), other=1)
    b_x = tl.where(b_allowed != 0, b_x, -float("inf"))
    b_x += tl.load(p_bias + o_v, mask=when(m_v, (uses & _BIAS) > 0), other=0.0)
    b_seen = tl.load(p_counts + o_v, mask=when(m_v, (uses & _COUNTS) > 0), other=0)
    repetition = tl.load(p_params + _REPETITION).to(tl.float32)
    scaled = tl.where(b_x > 0, tl.div_rn(b_x, tl.zeros([BV], tl.float32) + repetition), b_x * repetition)
    b_x = tl.where(b_seen > 0, scaled, b_x)
    often = b_seen.to(tl.float32) * tl.load(p_params + _FREQUENCY).to(tl.float32)
    b_x -= often + (b_seen > 0).to(tl.float32) * tl.load(p_params + _PRESENCE).to(tl.float32)
    bits = tl.where(b_x == 0.0, 0.0, b_x).to(tl.int32, bitcast=True)
    tl.store(p_keys + o_v, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits), mask=m_v)
    faulty = tl.max((b_x != b_x).to(tl.int32))
    value = tl.max(tl.where(b_x != b_x, -float("inf"), b_x))
    first = tl.min(tl.where((b_x == value) & m_v, o_v, V))
    # a NaN anywhere is the row's result: id -1, greater than every value
    tl.store(p_best + i_v, tl.where(faulty > 0, float("inf"), value))
    tl.store(p_ids + i_v, tl.where(faulty > 0, _NAN, first))


@triton.jit
def _weigh(p_params, p_keys, p_best, p_mass, p_found, tiles, valid, BT: tl.constexpr, BV: tl.constexpr):
    chain()
    o_t = tl.arange(0, BT)
    best = tl.max(tl.load(p_best + o_t, mask=o_t < tiles, other=-float("inf")))
    temperature = tl.load(p_params + _TEMPERATURE)
    temperature = tl.where(temperature == 0.0, 1.0, temperature)
    o_v = tl.program_id(0) * BV + tl.arange(0, BV)
    m_v = o_v < valid
    b_key = tl.load(p_keys + o_v, mask=m_v, other=0)
    b_x = tl.where(b_key < 0, b_key ^ 0x7FFFFFFF, b_key).to(tl.float32, bitcast=True)
    b_less = tl.where(b_x == best, 0.0, b_x)  # no infinity minus itself
    b_weight = tl.exp((b_less.to(tl.float64) - best.to(tl.float64)) / temperature)
    b_weight = tl.where(b_x == best, 1.0, tl.where(b_weight <= 1.0, b_weight, 0.0))
    b_mass = tl.where(m_v, (b_weight * _UNIT + 0.5).to(tl.int64), 0)
    tl.store(p_mass + o_v, b_mass, mask=m_v)
    tl.atomic_add(p_found + _TOTAL, tl.sum(b_mass))


@triton.jit
def _settle(p_at, p_sums, i, shift, goal, BY_MASS: tl.constexpr, WAYS: tl.constexpr):
    """After pass i: the highest of its cuts that `goal` ids (or their mass) reach; ids and mass above it, and at it."""
    o_w = tl.arange(0, WAYS)
    b_ids = tl.load(p_sums + 2 * i * WAYS + o_w)
    b_mass = tl.load(p_sums + (2 * i + 1) * WAYS + o_w)
    low, above_ids, above_mass = tl.load(p_at + 3 * i), tl.load(p_at + 3 * i + 1), tl.load(p_at + 3 * i + 2)
    reached = b_mass >= goal if BY_MASS else b_ids >= goal
    way = tl.maximum(tl.sum(reached.to(tl.int32)) - 1, 0)
    above_ids = tl.where(way + 1 < WAYS, tl.sum(tl.where(o_w == way + 1, b_ids, 0)), above_ids)
    above_mass = tl.where(way + 1 < WAYS, tl.sum(tl.where(o_w == way + 1, b_mass, 0)), above_mass)
    at_ids = tl.sum(tl.where(o_w == way, b_ids, 0)) - above_ids
    at_mass = tl.sum(tl.where(o_w == way, b_mass, 0)) - above_mass
    return low + (way.to(tl.int64) << shift), above_ids, above_mass, at_ids, at_mass


@triton.jit
def _rank(p_params, valid):
    """The number of ids that top-k keeps, 0 if it is off."""
    k = tl.load(p_params + _TOP_K).to(tl.int64)
    return tl.where((k < valid) & (tl.load(p_params + _TEMPERATURE) > 0.0), k, 0)


@triton.jit(do_not_specialize=["i", "shift_before", "shift"])
def _narrow(
    p_params, p_keys, p_mass, p_at, p_sums, p_found, i, shift_before, shift, valid,
    BY_MASS: tl.constexpr, WAYS: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    chain()
    goal = tl.load(p_found + _P_GOAL) if BY_MASS else _rank(p_params, valid)
    if goal > 0:
        i_v = tl.program_id(0)
        o_v = (i_v * BV + tl.arange(0, BV))[None, :]
        m_v = o_v < valid
        b_key = tl.load(p_keys + o_v, mask=m_v, other=-0x7FFFFFFF)
        b_mass = tl.load(p_mass + o_v, mask=m_v, other=0)
        low, above_ids, above_mass, _, _ = _settle(p_at, p_sums, i - 1, shift_before, goal, BY_MASS, WAYS)
        if i_v == 0:
            tl.store(p_at + 3 * i, low)
            tl.store(p_at + 3 * i + 1, above_ids)
            tl.store(p_at + 3 * i + 2, above_mass)
        if tl.max(tl.max(b_key, 1), 0) >= low:  # else no id of the tile reaches any cut
            o_w = tl.arange(0, WAYS)
            # a cut above all patterns is reached by none; only the last pass, of fewer bits than the others, has one
            b_cut = tl.minimum(low + (o_w.to(tl.int64) << shift), 0x7FFFFFFF).to(tl.int32)
            reached = (b_key >= b_cut[:, None]) & m_v
            tl.atomic_add(p_sums + 2 * i * WAYS + o_w, tl.sum(reached.to(tl.int32), 1).to(tl.int64))
            tl.atomic_add(p_sums + (2 * i + 1) * WAYS + o_w, tl.sum(tl.where(reached, b_mass, 0), 1))


@triton.jit
def _turn(p_params, p_at, p_sums, p_found, passes, valid, WAYS: tl.constexpr):
    """From the search for top-k to that for top-p."""
    chain()
    goal = _rank(p_params, valid)
    cut, above_ids, above_mass, at_ids, at_mass = _settle(p_at, p_sums, passes, 0, goal, False, WAYS)
    each = at_mass // tl.maximum(at_ids, 1)
    kept = tl.where(goal > 0, above_mass + (goal - above_ids) * each, tl.load(p_found + _TOTAL))
    tl.store(p_found + _K_CUT, tl.where(goal > 0, cut, tl.load(p_at)))  # off: below every logit
    tl.store(p_found + _K_SPARE, tl.where(goal > 0, goal - above_ids, 0))
    tl.store(p_found + _K_EACH, each)
    share = tl.load(p_params + _TOP_P)
    exact = share * kept.to(tl.float64)
    mass = exact.to(tl.int64)
    mass += (mass.to(tl.float64) < exact).to(tl.int64)
    on = (share < 1.0) & (tl.load(p_params + _TEMPERATURE) > 0.0)
    tl.store(p_found + _P_GOAL, tl.where(on, tl.maximum(tl.minimum(mass, kept), 1), 0))


@triton.jit
def _share(
    p_params, p_keys, p_mass, p_at, p_sums, p_found, p_above, p_equal, passes, valid,
    WAYS: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    chain()
    goal = tl.load(p_found + _P_GOAL)
    cut, _, above_mass, at_ids, at_mass = _settle(p_at, p_sums, passes, 0, goal, True, WAYS)
    each = tl.maximum(at_mass // tl.maximum(at_ids, 1), 1)
    spare = tl.where(goal > 0, (goal - above_mass + each - 1) // each, tl.load(p_found + _K_SPARE))
    cut = tl.where(goal > 0, cut, tl.load(p_found + _K_CUT))
    each = tl.where(goal > 0, each, tl.load(p_found + _K_EACH))
    i_v = tl.program_id(0)
    if i_v == 0:
        tl.store(p_found + _CUT, cut)
        tl.store(p_found + _SPARE, spare)
        tl.store(p_found + _EACH, each)
    floor = tl.load(p_params + _MIN_P) * _UNIT
    o_v = i_v * BV + tl.arange(0, BV)
    m_v = o_v < valid
    b_key = tl.load(p_keys + o_v, mask=m_v, other=0).to(tl.int64)
    b_mass = tl.load(p_mass + o_v, mask=m_v, other=0)
    above = m_v & (b_key > cut) & (b_mass.to(tl.float64) >= floor)
    tl.store(p_above + i_v, tl.sum(tl.where(above, b_mass, 0)))
    tl.store(p_equal + i_v, tl.sum((m_v & (b_key == cut)).to(tl.int64)))


@triton.jit
def _draw(
    p_params, p_keys, p_mass, p_best, p_ids, p_found, p_above, p_equal, p_out, tiles, V, valid,
    BT: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    chain()
    cut, spare, each = tl.load(p_found + _CUT), tl.load(p_found + _SPARE), tl.load(p_found + _EACH)
    floor = tl.load(p_params + _MIN_P) * _UNIT
    o_t = tl.arange(0, BT)
    b_best = tl.load(p_best + o_t, mask=o_t < tiles, other=-float("inf"))
    best = tl.max(b_best)
    first = tl.min(tl.where(b_best == best, tl.load(p_ids + o_t, mask=o_t < tiles, other=V), V))
    b_equal = tl.load(p_equal + o_t, mask=o_t < tiles, other=0)
    b_before = tl.cumsum(b_equal, 0) - b_equal
    b_spare = tl.minimum(tl.maximum(spare - b_before, 0), b_equal)  # of each tile's ids at the cut, the first ones
    b_kept = tl.load(p_above + o_t, mask=o_t < tiles, other=0)
    b_kept += tl.where(each.to(tl.float64) >= floor, each, 0) * b_spare
    b_run = tl.cumsum(b_kept, 0)
    whole = tl.sum(b_kept)
    target = (whole.to(tl.float64) * tl.load(p_params + _UNIFORM)).to(tl.int64)
    target = tl.minimum(target, whole - 1)
    i_t = tl.minimum(tl.sum((b_run <= target).to(tl.int32)), tiles - 1)
    target -= tl.sum(tl.where(o_t == i_t, b_run - b_kept, 0))
    spare = tl.sum(tl.where(o_t == i_t, b_spare, 0))
    o_v = i_t * BV + tl.arange(0, BV)
    m_v = o_v < valid
    b_key = tl.load(p_keys + o_v, mask=m_v, other=0).to(tl.int64)
    b_mass = tl.load(p_mass + o_v, mask=m_v, other=0)
    b_equal = (m_v & (b_key == cut)).to(tl.int64)
    kept = (b_key > cut) | ((b_equal > 0) & (tl.cumsum(b_equal, 0) <= spare))
    kept = kept & (b_mass.to(tl.float64) >= floor)
    b_run = tl.cumsum(tl.where(kept, b_mass, 0), 0)
    drawn = tl.minimum(i_t * BV + tl.sum((b_run <= target).to(tl.int32)), valid - 1)
    chosen = tl.where(tl.load(p_params + _TEMPERATURE) > 0.0, drawn, first)
    chosen = tl.where(best == -float("inf"), _NONE, tl.where(first == _NAN, _NAN, chosen))
    tl.store(p_out, chosen.to(tl.int64))


def choose(
    control: Tensor, params: Tensor, tokens: Tensor, logits: Tensor, work: Work, out: Tensor, *, valid: int
) -> None:
    """Choose the token that follows the last row of a slot, as the parameters say; NAN or NONE when there is none.

    control [>= 2] int64: slot, position of its last row; params [len(PARAMS)] float64; tokens [slots, capacity] int64;
    logits [slots, V] fp32; out [1] int64. Penalties are by the tokens of the slot up to the position; `work.bias` and
    `work.mask` are read if `uses` has their bits.
    """
    w, vocab, bv = work, logits.shape[1], work.width
    tiles, capacity = triton.cdiv(vocab, bv), tokens.stride(0)
    passes, ways = w.at.shape[1] - 1, w.sums.shape[3]
    bt, tw = triton.next_power_of_2(tiles), tile(capacity, 1024, 65536)
    _clear[(tiles,)](
        params, w.counts, w.sums, w.found, vocab, w.sums.numel(), w.sums.stride(0),
        WAYS=ways, BS=triton.next_power_of_2(w.sums.numel()), BV=bv, launch_pdl=PDL, num_warps=4,
    )  # fmt: skip
    _count[(triton.cdiv(capacity, tw),)](
        control, params, tokens, w.counts, capacity, BT=tw, launch_pdl=PDL, num_warps=4
    )
    # no fused multiply-add: each operation rounds as in the definition
    _adjust[(tiles,)](
        control, params, logits, w.mask, w.bias, w.counts, w.keys, w.best, w.ids, vocab, valid,
        BV=bv, launch_pdl=PDL, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    _weigh[(tiles,)](params, w.keys, w.best, w.mass, w.found, tiles, valid, BT=bt, BV=bv, launch_pdl=PDL, num_warps=4)
    for search, by_mass in enumerate((False, True)):
        for i, before, shift in w.passes():
            _narrow[(tiles,)](
                params, w.keys, w.mass, w.at[search], w.sums[search], w.found, i, before, shift, valid,
                BY_MASS=by_mass, WAYS=ways, BV=bv, launch_pdl=PDL, num_warps=8,
            )  # fmt: skip
        if not by_mass:
            _turn[(1,)](params, w.at[0], w.sums[0], w.found, passes, valid, WAYS=ways, launch_pdl=PDL, num_warps=1)
    _share[(tiles,)](
        params, w.keys, w.mass, w.at[1], w.sums[1], w.found, w.above, w.equal, passes, valid,
        WAYS=ways, BV=bv, launch_pdl=PDL, num_warps=4,
    )  # fmt: skip
    _draw[(1,)](
        params, w.keys, w.mass, w.best, w.ids, w.found, w.above, w.equal, out, tiles, vocab, valid,
        BT=bt, BV=bv, launch_pdl=PDL, num_warps=8,
    )  # fmt: skip
