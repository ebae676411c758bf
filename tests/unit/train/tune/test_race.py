"""Who is measured on how many answers, and how sure a speed-up is."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from tests.unit.train.tune.made import Drafting, answers, costs
from trtspec.forecast.speedup import RoundCosts, speedup
from trtspec.train.tune.candidate import Candidate
from trtspec.train.tune.race import FEWEST, CandidateResult, compare, run
from trtspec.train.tune.result import result_of, why
from trtspec.train.tune.score import ratio, t_quantile


def test_the_speed_up_is_leviathans() -> None:
    """With every token right with the same probability, whatever came before it, his model is exact."""
    alpha, count = 0.7, 300
    found = run(answers(count), costs(0.1), 1.0, Drafting(alpha))
    model = RoundCosts(0.1, overhead=0.1, verified=0.01)
    assert found.answers == count
    for score in found.scores:
        expected = speedup([alpha] * score.length, model)
        assert score.speedup.value == pytest.approx(expected, rel=0.04)  # Answers end within a draft.
        assert score.acceptance.per_token == pytest.approx(alpha, abs=0.01)
    best = max(range(9), key=lambda length: speedup([alpha] * length, model))
    assert abs(found.best.length - best) <= 1


def test_who_cannot_win_is_left_early_and_who_can_is_not() -> None:
    asked = answers(200)
    good = run(asked, costs(0.1), 1.0, Drafting(0.8))
    assert good.bound is None
    hopeless = Drafting(0.3)
    left = run(asked, costs(0.1), good.best.speedup.low, hopeless)
    assert left.bound is not None
    assert left.bound < good.best.speedup.low
    assert len(hopeless.seen) == left.answers < 100
    close = run(asked, costs(0.1), good.best.speedup.low, Drafting(0.79, seed=2))
    assert close.answers == len(asked)


def test_who_was_measured_on_all_answers_was_not_left() -> None:
    slow = run(answers(FEWEST), costs(5.0), 1.0, Drafting(0.1))
    assert (slow.answers, slow.bound) == (FEWEST, None)
    assert slow.best.speedup.high < 1.0
    found = result_of([CandidateResult(Candidate("ngram", None), slow)], FEWEST, 1, is_measured=True)
    assert why(found.standings[0], found) == "slower than the target alone"


def test_nobody_is_left_on_too_few_answers() -> None:
    hopeless = run(answers(FEWEST + 1), costs(5.0), 1.0, Drafting(0.1))
    assert hopeless.answers == FEWEST


def test_costs_that_are_unsure_leave_nobody() -> None:
    asked = answers(64)
    sure, unsure = (run(asked, costs(0.1, error), 1.6, Drafting(0.5)) for error in (0.0, 0.5))
    assert sure.bound is not None
    assert unsure.bound is None


def test_variation_that_all_answers_share_does_not_blur_a_comparison() -> None:
    found = run(answers(100), costs(0.1, error=0.2), 1.0, Drafting(0.8))
    by_length = {score.length: score for score in found.scores}
    same = compare(found, found, (4, 4))
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)
    versus = compare(found, found, (4, 1))
    assert versus.low > 1.0
    assert by_length[4].speedup.low < by_length[1].speedup.high


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 30, 200])
def test_quantiles_of_students_t_are_scipys(degrees: int) -> None:
    assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=5e-3)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    dice, held = random.Random(1), 0
    for _ in range(1000):
        rounds = [dice.lognormvariate(3, 0.5) for _ in range(20)]
        tokens = [2.0 * count * dice.lognormvariate(-0.02, 0.2) for count in rounds]
        found = ratio(tokens, rounds)
        held += found.low <= 2.0 <= found.high
    assert 930 <= held <= 970


def test_one_answer_says_nothing() -> None:
    found = ratio([10], [5])
    assert (found.value, found.low, found.high) == (2.0, 0.0, math.inf)


def test_one_answer_with_a_part_says_nothing_either() -> None:
    for wholes, parts in (([10, 0], [5, 0]), ([0, 10, 0], [0, 5, 0])):
        found = ratio(wholes, parts)
        assert (found.value, found.low, found.high) == (2.0, 0.0, math.inf)
