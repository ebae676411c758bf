"""Intervals against scipy, and against many runs of dice whose truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from trtspec.measure.bench.statistics import gain_of_second, mean, percentiles, ratio, unpaired_ratio

RUNS = 2000
Pair = tuple[float, float]


def quiet(dice: random.Random, number: int) -> Pair:
    """Two arms that do the same, on a machine of which others take a little."""
    return dice.lognormvariate(0, 0.05), dice.lognormvariate(0, 0.05)


def shared_noise(dice: random.Random, number: int) -> Pair:
    """What slows one block of a pair slows the other as well."""
    together = dice.lognormvariate(0, 0.5)
    return together * dice.lognormvariate(0, 0.05), together * dice.lognormvariate(0, 0.05)


def warm_cache(dice: random.Random, number: int) -> Pair:
    """Who comes second in a pair finds the prompts in the cache, and is a fifth faster."""
    first, second = quiet(dice, number)
    return (first, 1.2 * second) if number % 2 == 0 else (1.2 * first, second)


def drifting(dice: random.Random, number: int) -> Pair:
    """The machine gets slower from block to block."""
    first, second = quiet(dice, number)
    early, late = 0.97 ** (2 * number), 0.97 ** (2 * number + 1)
    return (first * early, second * late) if number % 2 == 0 else (first * late, second * early)


def busy(dice: random.Random, number: int) -> Pair:
    """Another program takes half of the machine for a third of the blocks, whichever these are."""
    first, second = (value * dice.choice([1, 1, 0.5]) for value in quiet(dice, number))
    return first, second


def covered(pair: Callable[[random.Random, int], Pair], pairs: int, truth: float) -> float:
    """The share of runs whose interval has the truth."""
    dice, hits = random.Random(1), 0
    for _ in range(RUNS):
        measured = [(truth * first, second) for first, second in (pair(dice, n) for n in range(pairs))]
        found = ratio(measured, 0.95)
        assert found is not None
        hits += found.low <= truth <= found.high
    return hits / RUNS


@pytest.mark.parametrize("pair", [quiet, shared_noise, warm_cache, drifting])
@pytest.mark.parametrize("pairs", [6, 12])
def test_a_against_a_is_no_difference_in_95_of_100_runs(
    pair: Callable[[random.Random, int], Pair], pairs: int
) -> None:
    """The spread of a share of 2,000 runs is 0.5 %."""
    assert covered(pair, pairs, 1.0) == pytest.approx(0.95, abs=0.015)
    assert covered(pair, pairs, 1.9) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("pairs", [6, 12])
def test_a_busy_machine_widens_the_interval_and_tells_no_lie(pairs: int) -> None:
    assert covered(busy, pairs, 1.0) >= 0.935
    dice = random.Random(2)

    def width(pair: Callable[[random.Random, int], Pair]) -> float:
        found = [ratio([pair(dice, number) for number in range(pairs)], 0.95) for _ in range(200)]
        return sum(each.high / each.low for each in found if each) / len(found)

    assert width(busy) > 1.5 * width(quiet)


def test_without_an_order_effect_it_is_a_paired_t_test_of_two_groups() -> None:
    """The residual of a linear model with the order as a covariate, by least squares."""
    dice = random.Random(3)
    pairs = [warm_cache(dice, number) for number in range(8)]
    logs = np.log([first / second for first, second in pairs])
    design = np.array([[1.0, 1.0 if number % 2 == 0 else -1.0] for number in range(8)])
    (effect, _), residual, _, _ = np.linalg.lstsq(design, logs, rcond=None)
    error = math.sqrt(residual[0] / 6 * np.linalg.inv(design.T @ design)[0, 0])
    half = stats.t.ppf(0.975, 6) * error
    found = ratio(pairs, 0.95)
    assert found is not None
    assert found.value == pytest.approx(math.exp(effect))
    assert (found.low, found.high) == pytest.approx((math.exp(effect - half), math.exp(effect + half)))


def test_a_mean_is_scipys() -> None:
    values = [3.0, 4.0, 5.0, 4.5]
    logs = np.log(values)
    low, high = stats.t.interval(0.9, 3, loc=logs.mean(), scale=stats.sem(logs))
    found = mean(values, 0.9)
    assert found is not None
    assert found.value == pytest.approx(stats.gmean(values))
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_two_runs_are_compared_as_welch_does() -> None:
    first, second = [5.0, 5.5, 6.0, 5.2], [4.0, 4.1, 3.9]
    found = unpaired_ratio(first, second, 0.95)
    expected = stats.ttest_ind(np.log(first), np.log(second), equal_var=False).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    same = unpaired_ratio([2.0, 2.0], [1.0, 1.0], 0.95)
    assert same is not None
    assert (same.value, same.low, same.high) == pytest.approx((2, 2, 2))


def test_intervals_are_none_where_too_few_samples_allow_none() -> None:
    assert ratio([(1, 1)] * 5, 0.95) is None
    assert ratio([(1, 1)] * 5 + [(1, 0)], 0.95) is None
    assert mean([1.0], 0.95) is None
    assert mean([1.0, 0.0], 0.95) is None
    assert unpaired_ratio([1.0], [1.0, 2.0], 0.95) is None
    assert percentiles([]) is None


def test_percentiles_are_numpys() -> None:
    values = [random.Random(4).random() for _ in range(37)]
    found = percentiles(values)
    assert found is not None
    assert [found.p50, found.p90, found.p95, found.p99] == pytest.approx(
        np.percentile(values, [50, 90, 95, 99]).tolist()
    )
    assert found.count == 37
    assert found.mean == pytest.approx(float(np.mean(values)))


@pytest.mark.parametrize(("prompt_s", "speedup"), [(0.1, 2.0), (1.0, 2.0), (0.5, 1.2), (1.0, 0.7)])
def test_a_stated_speed_up_is_off_that_of_new_prompts_by_no_more_than_the_gain(
    prompt_s: float, speedup: float
) -> None:
    """Requests of a second of decoding, whose prompts are in the cache for who comes second."""
    dice, pairs = random.Random(3), []
    for number in range(8):
        own, plain = (prompt_s, 0.0) if number % 2 == 0 else (0.0, prompt_s)
        noise = dice.lognormvariate(0, 0.01), dice.lognormvariate(0, 0.01)
        pairs.append((noise[0] / (own + 1 / speedup), noise[1] / (plain + 1)))
    of_new = (prompt_s + 1) / (prompt_s + 1 / speedup)
    stated, gain = ratio(pairs, 0.95), gain_of_second(pairs, 0.95)
    assert stated
    assert gain
    assert gain.value == pytest.approx(math.sqrt((1 + prompt_s) * (1 + prompt_s * speedup)), rel=0.05)
    assert abs(math.log(stated.value / of_new)) < math.log(gain.value)


def test_who_comes_second_on_a_quiet_machine_seldom_has_a_gain() -> None:
    dice, found = random.Random(5), 0
    for _ in range(RUNS):
        gain = gain_of_second([quiet(dice, number) for number in range(8)], 0.95)
        assert gain
        found += gain.low > 1
    assert found / RUNS == pytest.approx(0.025, abs=0.01)
