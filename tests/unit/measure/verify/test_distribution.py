"""The sampling check: what it says that it would have found, it finds.

As outcomes of continuations, none is lost, none is rare, and both samples are treated alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.said import Said
from trtspec.measure.verify.distribution import (
    FALSE_ALARMS,
    POWER,
    Continuation,
    Drawn,
    SamplingCheck,
    outcomes,
    repeats,
)
from trtspec.measure.verify.sides import Sides, VerificationSettings

DRAWS, RUNS, LIMIT = 500, 200, FALSE_ALARMS / 10
samples = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=20, max_size=30
)


class Words:
    """A vocabulary whose tokens are letters."""

    def text(self, tokens: Sequence[int]) -> str:
        return "".join(chr(97 + token) for token in tokens)


def check() -> SamplingCheck:
    said, words = Said((5,), (), ()), Words()
    asked = VerificationSettings((None,), concurrency=1, draws=DRAWS)
    return SamplingCheck(Sides(said, said), words, [], asked, lambda number: None)  # type: ignore[arg-type]


def _continuations(tokens: Any) -> list[Continuation]:
    return [(int(token),) for token in tokens]


def drawn(variation: float, open_prompts: int, dice: Any) -> list[Drawn]:
    """Four prompts, so many of which leave a choice of ten tokens; drafts change it by this variation."""
    plain = np.full(10, 0.1)
    other = plain + np.repeat([variation / 5, -variation / 5], 5)
    found = []
    for number in range(4):
        shares = (plain, other) if number < open_prompts else (np.eye(10)[0],) * 2
        alone, drafted = (_continuations(dice.choice(10, DRAWS, p=share)) for share in shares)
        found.append((f"p{number}", alone, drafted))
    return found


@pytest.mark.parametrize("open_prompts", [pytest.param(number, marks=pytest.mark.sweep) for number in (4, 1)])
def test_the_sampling_check_finds_every_difference_that_it_promises_to_find(open_prompts: int) -> None:
    """Prompts that leave no choice can hide nothing, and count for nothing."""
    dice, sampling = np.random.default_rng(1), check()
    promised = sampling._view("text", drawn(0, open_prompts, dice), LIMIT).found_everywhere
    views = [sampling._view("text", drawn(promised, open_prompts, dice), LIMIT) for _ in range(RUNS)]
    found = sum(view.p_value < LIMIT for view in views) / RUNS
    assert found >= POWER - 3 * (POWER * (1 - POWER) / RUNS) ** 0.5


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
