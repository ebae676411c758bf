"""Continuations as outcomes: none is lost, none is rare, and both samples are treated alike."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.measure.verify.distribution import repeats
from trtspec.measure.verify.outcomes import outcomes

samples = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=20, max_size=30
)


def test_common_beginnings_are_told_apart_as_far_as_they_are_common() -> None:
    one = [(1, 2, 3)] * 10 + [(1, 2, 4)] * 10 + [(1, 7, 7)] * 6 + [(5, 5, 5)] * 2
    other = [(1, 2, 3)] * 12 + [(1, 2, 4)] * 8 + [(1, 8, 8)] * 6 + [(6, 6, 6)] * 4
    assert outcomes([one, other], 12) == {
        (1, 2, 3): [10, 12],
        (1, 2, 4): [10, 8],
        (1,): [8, 10],
    }


@settings(max_examples=50, deadline=None)
@given(samples, samples, st.integers(2, 20))
def test_every_continuation_counts_once(
    one: list[tuple[int, ...]], other: list[tuple[int, ...]], least: int
) -> None:
    table = outcomes([one, other], least)
    assert [sum(column) for column in zip(*table.values(), strict=True)] == [len(one), len(other)]
    assert len(table) == 1 or all(sum(row) >= least for row in table.values())
    swapped = outcomes([other, one], least)
    assert {outcome: row[::-1] for outcome, row in swapped.items()} == table


def test_repeats_do_not_depend_on_the_tokens() -> None:
    assert repeats((7, 9, 7, 4)) == repeats((1, 2, 1, 3)) == (0, 1, 0, 2)
