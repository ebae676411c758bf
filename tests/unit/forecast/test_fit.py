from __future__ import annotations

import random

import pytest

from trtspec.forecast.fit import FittedSeconds, fit
from trtspec.forecast.speedup import RoundCosts

COSTS = RoundCosts(draft=0.2, overhead=0.3, verified=0.05)
PLAIN = 0.004
LENGTHS = (1, 2, 4, 8)


def measured(costs: RoundCosts, noise: float = 0.0) -> FittedSeconds:
    dice = random.Random(1)

    def seen(steps: float) -> float:
        return PLAIN * steps * dice.uniform(1 - noise, 1 + noise)

    return FittedSeconds(
        PLAIN,
        rounds={length: seen(costs.of(length)) for length in LENGTHS},
        drafts={length: seen(0.1 + costs.draft * length) for length in LENGTHS},
        verifications={length: seen(1.1 + costs.verified * length) for length in LENGTHS},
    )


def test_costs_that_made_the_times_are_found_again() -> None:
    found = fit(measured(COSTS))
    assert (found.draft, found.overhead, found.verified) == pytest.approx((0.2, 0.3, 0.05))


def test_noise_moves_a_round_less_than_itself() -> None:
    found = fit(measured(COSTS, noise=0.05))
    for length in range(1, 9):
        assert found.of(length) == pytest.approx(COSTS.of(length), rel=0.05)


def test_whole_rounds_alone_are_enough_for_a_round() -> None:
    whole = measured(COSTS)
    found = fit(FittedSeconds(PLAIN, whole.rounds))
    assert found.verified == 0
    assert [found.of(length) for length in LENGTHS] == pytest.approx([COSTS.of(length) for length in LENGTHS])


def test_no_cost_is_below_zero() -> None:
    free = {length: PLAIN * (1.2 - 0.01 * length) for length in LENGTHS}
    found = fit(FittedSeconds(PLAIN, dict.fromkeys(LENGTHS, PLAIN * 1.5), free, free))
    assert min(found.draft, found.verified) == 0
    assert found.of(4) == pytest.approx(1.5, rel=0.1)


def test_rounds_that_seem_to_cost_nothing_cost_a_plain_step() -> None:
    found = fit(FittedSeconds(PLAIN, {length: PLAIN * (0.9 - 0.01 * length) for length in LENGTHS}))
    assert [found.of(length) for length in LENGTHS] == [1.0] * len(LENGTHS)


def test_nothing_comes_of_no_round() -> None:
    with pytest.raises(ValueError, match="no round"):
        fit(FittedSeconds(PLAIN, {}))
