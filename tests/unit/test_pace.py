"""Where prefill chunks end, and how long they may be beside others."""

import hypothesis.strategies as st
import pytest
from carousel_server.pace import TARGET_SECONDS, Pace, chunk_end
from hypothesis import given


@pytest.mark.parametrize(
    ("position", "length", "chunk", "boundaries", "end"),
    [
        (0, 1000, 256, (), 256),
        (10, 1000, 256, (), 256),
        (0, 100, 256, (), 100),
        (0, 1000, 256, (100,), 100),
        (100, 1000, 256, (100,), 320),
        (63, 1000, 64, (), 64),
        (0, 1000, 1, (), 64),
    ],
)
def test_a_chunk_ends_at_a_boundary_the_end_or_a_multiple_of_64(position, length, chunk, boundaries, end):
    assert chunk_end(position, length, chunk, boundaries) == end


@given(st.integers(0, 2000), st.integers(1, 600), st.lists(st.integers(1, 2500), max_size=3, unique=True))
def test_chunks_cover_the_prompt_and_stop_at_every_boundary(position, chunk, marks):
    length = 2501
    boundaries, ends = tuple(sorted(marks)), []
    while position < length:
        end = chunk_end(position, length, chunk, boundaries)
        assert end > position
        assert end % 64 == 0 or end in boundaries or end == length
        position = end
        ends.append(end)
    assert ends[-1] == length
    assert {b for b in boundaries if b >= (ends[0] if ends else 0)} <= set(ends)


def test_beside_others_a_chunk_takes_about_the_target_time():
    pace = Pace(4096)
    assert pace.chunk(alone=False) == 4096
    pace.observe(4096, 4.096)
    assert pace.chunk(alone=False) == int(1000 * TARGET_SECONDS) // 64 * 64
    assert pace.chunk(alone=True) == 4096


def test_a_slow_engine_still_makes_progress():
    pace = Pace(1024)
    pace.observe(1024, 1000.0)
    assert pace.chunk(alone=False) == 64


def test_streamed_experts_are_not_paced():
    pace = Pace(4096, paced=False)
    pace.observe(4096, 3.0)
    assert pace.chunk(alone=False) == 4096


def test_short_chunks_say_nothing_about_speed():
    pace = Pace(1024)
    pace.observe(3, 1.0)
    assert pace.tokens_per_second is None
