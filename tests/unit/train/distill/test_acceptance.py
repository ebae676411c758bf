"""The interval of a change holds the true one as often as it says."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from trtspec.train.distill.acceptance import change, measure
from trtspec.train.tune.answer import RecordedAnswer

Shares = list[tuple[int, int]]


def answers(dice: random.Random, count: int) -> tuple[Shares, Shares]:
    """Answers of different difficulty; the second draft is right 1.2 times as often on each."""
    before, after = [], []
    for _ in range(count):
        easy = dice.uniform(0.4, 0.8)
        tried = dice.randrange(40, 80)
        before.append((sum(dice.random() < easy for _ in range(tried)), tried))
        after.append((sum(dice.random() < 1.2 * easy for _ in range(tried)), tried))
    return before, after


def test_the_interval_holds_the_change_in_19_of_20() -> None:
    dice, held, above_one = random.Random(1), 0, 0
    for _ in range(600):
        found = change(*answers(dice, 24))
        held += found.low <= 1.2 <= found.high
        above_one += found.low > 1
    assert 0.92 < held / 600 < 0.98
    assert above_one > 570


def test_the_interval_of_a_change_agrees_with_the_bootstrap() -> None:
    before, after = (np.array(side) for side in answers(random.Random(2), 60))
    found = change(*([(int(a), int(b)) for a, b in side] for side in (before, after)))

    draws = np.random.default_rng(3).integers(0, 60, (4000, 60))
    old, new = before[draws].sum(1), after[draws].sum(1)
    ratios = (new[:, 0] / new[:, 1]) / (old[:, 0] / old[:, 1])
    low, high = np.quantile(ratios, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.012)
    assert found.high == pytest.approx(high, abs=0.012)


def test_too_few_answers_give_an_interval_without_an_upper_end() -> None:
    assert change([(0, 9), (0, 9)], [(3, 9), (1, 9)]).high == math.inf
    alone = change([(3, 9)], [(6, 9)])
    assert (alone.value, alone.low, alone.high) == (2.0, 0.0, math.inf)


def test_one_answer_with_drafts_says_nothing_about_others() -> None:
    """The other answer leaves no room for a draft."""
    answers = [
        RecordedAnswer(str(count), "", (1,), tuple(range(3, 3 + count)), stopped=False) for count in (6, 1)
    ]
    found = measure(answers, [[[3, 4, 5, 9, 7, 8]] * 4, [[3]] * 4], 4)
    assert found
    assert [tally.drafted > 0 for tally in found.tallies] == [True, False]
    for interval in (found.per_token, found.of_drafted):
        assert 0 < interval.value < 1
        assert (interval.low, interval.high) == (0.0, math.inf)
    changed = change([(3, 5), (0, 0)], [(4, 5), (0, 0)])
    assert (changed.low, changed.high) == (0.0, math.inf)
