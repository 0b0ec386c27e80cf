"""What the engines allocate for a checkpoint, in bytes: states of sequences, expert pool, weights, scratch. Pure.

The engines take the sizes of their rings and areas from here; tests compare every sum with the tensors themselves.
"""

from dataclasses import dataclass

from carousel_server.model_shape import ModelShape

PENDING = 64  # rows that the CPU engine's draft head may lag behind; they are fed to it together
STEP_ROWS = 4  # rows of a decode step of the GPU engine at most: a token and three drafts
STEP_RING = 2 * STEP_ROWS  # rows of a DeltaNet layer's rings: those of a step, and before them as many to replay
NGRAM_RING = 16  # rows of the n-gram convolution's ring: 4 of a step, and its reach of 9 before them
TAIL = 8  # raw index keys
SAVED_ROWS = 64  # tokens of a page of a saved sequence of the GPU engine
SAVED_PIECE = 65536  # bytes of a slot that one row of 8 numbers describes to the copies, at most
SPARE = 2 * STEP_ROWS  # rows behind the context: drafts of a full sequence are written there before they are rejected
SMALL_TABLE = 256 * 2**20  # bytes of an n-gram table up to which it is copied to the GPU
EXACT_PARAMETERS = 10**9  # models below this keep activations and caches in fp32 on the GPU: it costs them nothing
SLOT_BYTES = 12  # the owner and the last use of a pool slot
LOADING, LOADING_BUFFERS = 64 * 2**20, 4  # bytes of a buffer that experts pass on their way to the GPU, and its number
FP8_SIDE = 128  # rows and columns of an FP8 weight that share one scale
ALIGNMENT = 16  # bytes: what the GPU copies experts by, so where they begin in host memory


@dataclass(frozen=True)
class StateBytes:
    """The state of sequences in one of the engines."""

    once: int  # beside the slots, however many they are
    slot: int  # a live sequence at the full context
    fixed: int  # a saved sequence of 0 tokens, in host memory, with what rounding up may add
    token: int  # and each of its tokens


def cpu_state(shape: ModelShape, context: int, drafts: int) -> StateBytes:
    """Of engine/state.py, in fp32."""
    s, wide = shape, shape.hidden * shape.streams
    drafting = drafts > 0 and s.mtp_layers > 0
    rows, layers = (drafts if drafting else 0) + 1, s.attention_layers + (s.mtp_layers if drafting else 0)
    capacity, ratio = _up(context, s.index_ratio), s.index_ratio
    delta = s.linear_value_heads * s.linear_key_dim * s.linear_value_dim
    taps, reach = s.linear_conv - 1, (s.ple_conv - 1) * s.ngram_size
    slot = s.linear_layers * (_up(taps + rows, 8) * s.mixed_channels + rows * delta)
    slot += layers * (
        2 * capacity * s.kv_heads * s.head_dim + (capacity // ratio + _up(ratio + rows, ratio)) * s.index_dim
    )
    slot += s.ple_layers * _up(reach + rows, 8) * wide + rows * s.vocab + (PENDING + rows if drafting else 1) * wide
    fixed = s.linear_layers * (taps * s.mixed_channels + delta) + layers * (ratio - 1) * s.index_dim
    fixed += s.ple_layers * reach * wide + s.vocab + (wide if drafting else 0)
    token = 8 + layers * 8 * s.kv_heads * s.head_dim + _over(4 * layers * s.index_dim, ratio)
    return StateBytes(0, 4 * slot + 8 * capacity, 4 * fixed, token)


def gpu_state(shape: ModelShape, context: int, drafts: int) -> StateBytes:
    """Of engine/gpu_state.py and engine/saved.py: caches as `activation_bytes`, everything else in fp32.

    Saved sequences are whole pages, so a saved token counts at most SAVED_ROWS - 1 others.
    """
    s, wide, element = shape, shape.hidden * shape.streams, activation_bytes(shape)
    layers = s.attention_layers + (s.mtp_layers if drafts > 0 else 0)
    room, ratio = _up(context, s.index_ratio) + SPARE, s.index_ratio
    rings = 2 * s.mixed_channels + 2 * s.linear_value_heads
    delta = STEP_RING * rings + s.linear_value_heads * s.linear_key_dim * s.linear_value_dim
    fixed = s.linear_layers * delta + layers * TAIL * s.index_dim + s.ple_layers * NGRAM_RING * wide
    fixed = 8 + 4 * (fixed + s.vocab + STEP_ROWS * wide)
    cached = layers * element * (room * 2 * s.kv_heads * s.head_dim + room // ratio * s.index_dim)
    token = 8 + layers * element * 2 * s.kv_heads * s.head_dim + _over(layers * element * s.index_dim, ratio)
    page = SAVED_ROWS * token
    pages = _over(fixed, page)
    whole = 3 + 3 * s.linear_layers + s.ple_layers + layers + pages + _over(fixed, SAVED_PIECE)
    heads = 2 * s.kv_heads * _over(SAVED_ROWS * s.head_dim * element, SAVED_PIECE)
    rows = 1 + layers * (heads + _over(SAVED_ROWS // ratio * s.index_dim * element, SAVED_PIECE))
    staging = (pages + 1) * (page + 8) + 64 * (whole + rows)
    return StateBytes(
        4 * room * s.rotary + staging,
        fixed + 8 * room + cached,
        pages * page + (SAVED_ROWS - 1) * token,
        token,
    )


def exact(shape: ModelShape) -> bool:
    """The GPU engine keeps this model's activations and caches in fp32."""
    return shape.dense_params + shape.routed_params + shape.table_params < EXACT_PARAMETERS


def activation_bytes(shape: ModelShape) -> int:
    """Of a value in the GPU's key and value caches, and of an activation of a prompt."""
    return 4 if exact(shape) else 2


def expert_layers(shape: ModelShape, drafts: int) -> int:
    """Layers with experts in the pool."""
    return shape.moe_layers - (0 if drafts > 0 else shape.mtp_layers)


def pool_slots(budget: int, *, layers: int, experts: int, top: int, expert_bytes: int) -> int:
    """Slots of each layer for a byte limit: at least the `top` experts of one row, at most all."""
    return max(top, min(experts, budget // (layers * expert_bytes)))


def area_slots(experts: int, top: int, slots: int) -> int:
    """Slots behind those of all layers: for the misses of a step, then two layers of a prompt in turn. None where all
    experts are resident."""
    return 0 if slots == experts else STEP_ROWS * top + 2 * experts


def loading_batch(experts: int, expert_bytes: int) -> int:
    """Experts of a layer that pass one buffer together."""
    return min(experts, max(1, LOADING // expert_bytes))


def pool_bytes(shape: ModelShape, layers: int, slots: int) -> int:
    """Of engine/pool.py with this many slots a layer: slots, FP8 scales of every expert, and who is where."""
    s = shape
    known = layers * s.experts * (4 * s.scale_blocks + 24 + 4) + 4 * s.experts + 8
    return layers * slots * s.expert_bytes + known + (layers * (SLOT_BYTES * slots + 16) if slots < s.experts else 0)


def weight_bytes(shape: ModelShape, drafts: int, *, fp8: bool = False) -> int:
    """Dense weights of the GPU engine: matrices as stored, vectors widened to fp32, and the hash's constants; with
    drafts an FP8 copy of the head.

    fp8: the projections of DeltaNet and attention quantised.
    """
    vectors = shape.vector_params(drafts=drafts > 0)
    matrices = shape.dense_params - (0 if drafts > 0 else shape.draft_params) - vectors
    tables = shape.ple_dim // shape.ngram_width if shape.ple_layers else 0
    found = matrices * shape.dense_element_bytes + 4 * vectors + 8 * shape.ple_layers * (shape.ngram_size + 2 * tables)
    drafting = drafts > 0 and shape.mtp_layers > 0
    return found + (fp8_bytes(shape.vocab, shape.hidden) if drafting else 0) - (fp8_saving(shape, drafts) if fp8 else 0)


def fp8_bytes(rows: int, columns: int) -> int:
    """A quantised matrix with an fp32 scale a block."""
    return rows * columns + 4 * _over(rows, FP8_SIDE) * _over(columns, FP8_SIDE)


def fp8_saving(shape: ModelShape, drafts: int) -> int:
    """What engine/weights.py's `with_fp8` saves in all layers."""
    s = shape
    values, heads = s.linear_value_heads * s.linear_value_dim, s.heads * s.head_dim
    delta = s.mixed_channels + values + 2 * s.linear_value_heads, values
    attention = 2 * (heads + s.kv_heads * s.head_dim) + (s.index_heads + 1) * s.index_dim, heads
    layers = s.attention_layers + (s.mtp_layers if drafts > 0 else 0)

    def block(project: int, inner: int) -> int:
        stored = s.hidden * (project + inner) * s.dense_element_bytes
        return stored - fp8_bytes(project, s.hidden) - fp8_bytes(s.hidden, inner)

    return s.linear_layers * block(*delta) + layers * block(*attention)


def table_bytes(shape: ModelShape) -> tuple[int, int]:
    """The n-gram table in host memory and on the GPU: one of them is 0."""
    whole = shape.table_params * shape.expert_element_bytes
    return (0, whole) if whole <= SMALL_TABLE * max(1, shape.ple_layers) else (whole, 0)


def scratch_bytes(shape: ModelShape, chunk: int, context: int, element: int) -> int:
    """At most: activations of a prompt's chunk with its index scores, and the buffers of a decode step."""
    s = shape
    row = 8 * s.streams * s.hidden + 4 * s.mixed_channels + 4 * s.heads * s.head_dim
    row += s.experts_per_token * (3 * s.expert_width + s.hidden)
    step = 8 * s.streams * s.hidden + 4 * (s.mixed_channels + s.heads * s.head_dim + s.hidden)
    step += s.heads * (s.head_dim + 2) * _over(min(context, (s.index_blocks + 1) * s.index_ratio), 64)
    step += (s.experts_per_token + 1) * STEP_ROWS * (s.expert_width + s.hidden) + 3 * s.vocab
    seen = _over(context, s.index_ratio)
    return chunk * (row * element + 4 * seen) + 4 * STEP_ROWS * (step + seen + s.index_blocks + s.experts)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _over(value: int, by: int) -> int:
    return -(-value // by)
