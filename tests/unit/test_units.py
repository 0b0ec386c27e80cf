"""Byte quantities and durations, as Kubernetes and people write them."""

import hypothesis.strategies as st
import pytest
from carousel_server.units import format_bytes, format_duration, human_bytes, parse_bytes, parse_duration
from hypothesis import given


@pytest.mark.parametrize(
    ("text", "value"),
    [("256Mi", 2**28), ("1G", 10**9), (1048576, 2**20), ("1.5Gi", 3 * 2**29), ("4k", 4000), ("0", 0), (" 7 ", 7)],
)
def test_bytes_are_read(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "4 Mi", "-1", "1KB", "Mi", "1e3", True, 1.5, None])
def test_what_is_no_byte_quantity_is_refused(text):
    with pytest.raises(ValueError, match="byte quantity"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "value"), [("1h30m", 5400), ("900s", 900), ("250ms", 0.25), (3, 3), (0.5, 0.5), ("1.5m", 90)]
)
def test_durations_are_read(text, value):
    assert parse_duration(text) == value


@pytest.mark.parametrize("text", ["", "5", "1 s", "s", -1, float("inf"), float("nan"), "1d"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@given(st.integers(0, 2**50))
def test_bytes_survive_writing_and_reading(value):
    assert parse_bytes(format_bytes(value)) == value


@given(st.integers(0, 10**9))
def test_durations_survive_writing_and_reading(milliseconds):
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)


def test_bytes_for_people_have_three_digits():
    assert [human_bytes(n) for n in (512, 2**20, 3 * 2**29, 2**41)] == ["512 B", "1 MiB", "1.5 GiB", "2 TiB"]
