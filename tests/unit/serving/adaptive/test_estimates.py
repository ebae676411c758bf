from __future__ import annotations

import pytest

from trtspec.serving.adaptive.estimates import (
    NEVER,
    WINDOW,
    AcceptanceCounter,
    RoundCostModel,
    expected_tokens,
    kind_of,
)
from trtspec.serving.executor import SamplingConfig


def test_expected_tokens_are_those_of_the_observed_rates() -> None:
    own, overall = AcceptanceCounter(4), AcceptanceCounter(4)
    for _ in range(10_000):
        overall.record(4, 2, 1.0)
    tokens = expected_tokens(own, overall, 4, load=1)
    assert tokens[:3] == pytest.approx([1, 2, 3], abs=1e-3)
    assert tokens[4] - tokens[3] < 1e-3


def test_unobserved_positions_are_like_the_one_before() -> None:
    overall = AcceptanceCounter(8)
    for number in range(10_000):
        overall.record(1, number % 2, 1.0)
    tokens = expected_tokens(AcceptanceCounter(8), overall, 3, load=1)
    assert tokens == pytest.approx([1, 1.5, 1.75, 1.875], abs=1e-3)


def test_forgotten_verifications_no_longer_count_in_the_expected_tokens() -> None:
    own, overall = AcceptanceCounter(2), AcceptanceCounter(2)
    for _ in range(100):
        own.record(2, 0, 0.9)
    own.fade(0.0)
    assert expected_tokens(own, overall, 1, load=1) == pytest.approx([1, 1.7])


def tried(costs: RoundCostModel, times: int, slowness: float = 1.0, **seconds: float) -> None:
    """Tries K = 0, 1 and so on so many times, each between rounds of K = 4, which take 10 ms."""
    for _ in range(times):
        for name, length_s in seconds.items():
            for _ in range(WINDOW):
                costs.record("engine", 4, 0.010 * slowness)
            if length := int(name.removeprefix("k")):
                costs.record("engine", length, length_s * slowness)
            else:
                costs.record_alone(length_s * slowness)
            for _ in range(WINDOW):
                costs.record("engine", 4, 0.010 * slowness)


def test_rounds_that_were_not_seen_are_on_the_line() -> None:
    """The farther those are from one another that were, the better it is known."""
    costs = RoundCostModel(8, load=1)
    costs.use("engine", 4)
    assert costs.seconds("engine") == []
    true = [0.005, *(0.002 + 0.002 * n for n in range(1, 9))]
    tried(costs, 20, k0=0.005, k2=0.006)
    assert costs.seconds("engine") == pytest.approx(true, rel=0.1)
    tried(costs, 20, k8=0.018)
    assert costs.seconds("engine") == pytest.approx(true, rel=0.07)
    assert costs.seconds("lookup") == []


def test_draft_lengths_tried_often_keep_their_own_times_over_the_fitted_line() -> None:
    costs = RoundCostModel(4, load=1)
    costs.use("engine", 4)
    tried(costs, 20, k0=0.005, k1=0.009, k2=0.004)
    _, one, two, *_ = costs.seconds("engine")
    assert one == pytest.approx(0.009, rel=0.1)
    assert two == pytest.approx(0.004, rel=0.1)


def test_a_machine_that_is_slow_for_a_while_makes_no_length_better_than_another() -> None:
    costs, steady = RoundCostModel(4, load=1), RoundCostModel(4, load=1)
    for each in (costs, steady):
        each.use("engine", 4)
        tried(each, 1, k0=0.004, k2=0.008)
    for slowness in (2.0, 1.0, 3.0):
        tried(costs, 2, slowness, k0=0.004, k2=0.008)
        tried(steady, 2, k0=0.004, k2=0.008)
        assert costs.seconds("engine") == pytest.approx(steady.seconds("engine"), rel=0.01)


def test_a_trial_while_the_speed_changes_tells_little() -> None:
    costs = RoundCostModel(4, load=1)
    costs.use("engine", 4)
    tried(costs, 5, k0=0.004)
    before = costs.seconds("engine")
    costs.record_alone(0.004)
    for _ in range(WINDOW):
        costs.record("engine", 4, 0.100)
    alone, *_, four = costs.seconds("engine")
    assert alone / four == pytest.approx(before[0] / before[4], rel=0.05)


def test_a_length_that_comes_into_use_later_is_on_the_scale_of_the_others() -> None:
    """The machine has become twice as slow since the first round; what was never tried is measured now."""
    costs = RoundCostModel(4, load=1)
    costs.use("engine", 4)
    tried(costs, 3, k0=0.004)
    for _ in range(WINDOW):
        costs.record("engine", 4, 0.020)
    costs.use("engine", 2)
    costs.record("engine", 2, 0.016)
    *_, two, _, four = costs.seconds("engine")
    assert two / four == pytest.approx(0.8, rel=0.05)


@pytest.mark.parametrize("other_s", [0.010, 0.012])
def test_two_lengths_that_are_near_one_another_say_little_of_a_long_one(other_s: float) -> None:
    """The shorter took as long once, or longer, by chance; a long draft is still thought to take longer."""
    costs = RoundCostModel(8, load=1)
    costs.use("engine", 4)
    tried(costs, 1, k0=0.005, k3=other_s)
    *_, four, _, _, _, eight = costs.seconds("engine")
    assert eight > 1.3 * four


def test_one_long_pause_changes_little() -> None:
    costs = RoundCostModel(4, load=1)
    costs.use("engine", 4)
    tried(costs, 20, k0=0.004, k2=0.007)
    before = costs.seconds("engine")
    tried(costs, 1, k2=10.0)
    assert costs.seconds("engine") == pytest.approx(before, rel=0.1)


def test_rounds_of_other_draft_lengths_correct_a_misleading_first_measurement() -> None:
    """A first round that a pause fell into does not mislead for long."""
    costs = RoundCostModel(4, load=1)
    costs.use("engine", 4)
    costs.record("engine", 4, 0.030)
    tried(costs, 20, k0=0.004, k2=0.008)
    alone, _, two, _, four = costs.seconds("engine")
    assert (alone / four, two / four) == pytest.approx((0.4, 0.8), rel=0.05)


def test_long_rounds_that_come_again_and_again_are_paid() -> None:
    """Where many run, prompts of others are read in some of the rounds, and in a few tokens of a burst."""
    costs = RoundCostModel(4, load=16)
    costs.use("engine", 4)
    for _ in range(40):
        for index in range(16):
            costs.record("engine", 4, 0.010 if index % 4 else 0.030)
        for _ in range(16):
            costs.record_alone(0.005)
        for index in range(16):
            costs.record("engine", 4, 0.010 if index % 4 else 0.030)
    alone, _, _, _, four = costs.seconds("engine")
    assert alone / four == pytest.approx(0.005 / 0.015, rel=0.1)


def test_a_length_that_is_chosen_and_never_comes_tells_no_speed() -> None:
    """Whatever there is to offer is shorter; what comes instead is learned, and no list grows."""
    costs = RoundCostModel(8, load=1)
    for _ in range(10 * NEVER * WINDOW):
        costs.use("lookup", 4)
        costs.record("lookup", 2, 0.010)
        costs.use("lookup", 4)
        costs.record("lookup", 1, 0.008)
        costs.record_alone(0.005)
    alone, one, two, *_ = costs.seconds("lookup")
    assert [one / alone, two / alone] == pytest.approx([1.6, 2.0], rel=0.1)
    assert sum(map(len, costs._trial.values())) <= 3 * NEVER * WINDOW

    tried(costs, 20, k0=0.005)
    costs.use("lookup", 3)
    for _ in range(WINDOW):
        costs.record("lookup", 3, 0.012)
    assert costs.seconds("lookup")[3] / costs.seconds("lookup")[0] == pytest.approx(2.4, rel=0.1)


def test_kinds_of_texts_are_half_degrees() -> None:
    heats = (None, 0.0, 0.3, 0.7, 1.0, 1.1, 2.0, 9.0)
    kinds = [kind_of(SamplingConfig(temperature=heat)) for heat in heats]
    assert kinds == [0, 0, 2, 2, 3, 3, 5, 5]
    assert kind_of(SamplingConfig(top_p=0.9)) == kind_of(SamplingConfig(temperature=1.0))


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0625])
def test_the_expected_tokens_are_those_of_all_texts(share: float) -> None:
    overall = AcceptanceCounter(8)
    for _ in range(50):
        overall.record(4, 3, 0.99)
    of_drafted = expected_tokens(overall, overall, 8, 16)
    of_all = expected_tokens(overall, overall, 8, 16, share)
    assert of_all == pytest.approx([share * tokens + (1 - share) for tokens in of_drafted])
