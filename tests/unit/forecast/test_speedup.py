"""The arithmetic of speculative decoding against numbers that others have printed, and against dice."""

from __future__ import annotations

import random

import pytest

from trtspec.forecast.speedup import RoundCosts, speedup, tokens_per_round


@pytest.mark.parametrize(
    ("alpha", "length", "operations"),
    # Leviathan et al., table 1: acceptance, draft length, and the speed-up where a draft costs nothing.
    [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86)],
)
def test_the_table_of_the_paper(alpha: float, length: int, operations: float) -> None:
    assert speedup([alpha] * length, RoundCosts(draft=0)) == pytest.approx(operations, abs=0.005)


def test_a_round_is_what_dice_say() -> None:
    acceptance, dice, rounds = [0.9, 0.5, 0.8], random.Random(1), 200_000
    tokens = 0
    for _ in range(rounds):
        tokens += 1
        for probability in acceptance:
            if dice.random() >= probability:
                break
            tokens += 1
    assert tokens_per_round(acceptance) == pytest.approx(tokens / rounds, rel=0.01)


def test_no_draft_is_plain_decoding() -> None:
    assert speedup([], RoundCosts(draft=0.1, overhead=0.5, verified=0.1)) == 1
    assert best_length(0.05, RoundCosts(draft=0.1)) == 0


def test_overhead_makes_the_best_draft_longer_and_load_makes_it_shorter() -> None:
    alone = best_length(0.7, RoundCosts(0.06))
    assert best_length(0.7, RoundCosts(0.06, overhead=0.4)) > alone
    assert best_length(0.7, RoundCosts(0.06, verified=0.2)) < alone


def best_length(alpha: float, costs: RoundCosts) -> int:
    return max(range(17), key=lambda length: speedup([alpha] * length, costs))
