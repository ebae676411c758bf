"""Axes: every value has its place inside, and ticks are few, in order and not crowded."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from trtspec.measure.report.plot import Axis, of_amounts, of_loads, of_ratios

amounts = st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=12)


def check(axis: Axis, values: list[float]) -> None:
    assert axis.low < axis.high
    assert all(axis.low * (1 - 1e-9) <= value <= axis.high * (1 + 1e-9) for value in values)
    places = [axis.place(value) for value, _ in axis.ticks]
    assert places == sorted(places)
    assert 1 <= len(places) <= 16
    assert all(later - earlier > 0.05 for earlier, later in pairwise(places))
    assert all(0 <= axis.place(value) <= 1 for value in (*values, 0.0, axis.high * 10))


@given(amounts)
def test_amounts(values: list[float]) -> None:
    check(of_amounts(values, str), values)


@given(amounts)
def test_loads(values: list[float]) -> None:
    check(of_loads(values, str), values)


@given(st.lists(st.floats(0, 8), min_size=1, max_size=12))
def test_ratios_are_seen_on_both_sides_of_their_middle(values: list[float]) -> None:
    axis = of_ratios(values, str)
    check(axis, values)
    assert 0.05 < axis.place(1.0) < 0.95


def test_each_doubling_of_load_has_the_same_room() -> None:
    axis = of_loads([1, 2, 4, 8], "{:g}".format)
    assert [round(axis.place(value), 6) for value, _ in axis.ticks] == [0, 0.333333, 0.666667, 1]


def test_one_load_stands_in_the_middle() -> None:
    assert of_loads([4], str).place(4) == 0.5
