"""The bounds of a roll-out, and what a server has counted since a step."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.deployment.rollout.metrics import text_of
from trtspec.client.scrape import parse
from trtspec.deployment.rollout.bounds import (
    FEWEST_WITHOUT_ERRORS,
    LEAST_REQUESTS,
    ArmCounts,
    BoundState,
    Check,
    MeanTimes,
    RolloutEvidence,
    ScoredDrafts,
    between,
    check,
    counted,
    overall,
)
from trtspec.serving.rollout.state import RolloutState
from trtspec.serving.stats import Stats

GOOD = ScoredDrafts(1000, 4000, 3000)
QUARTER, ALL = RolloutState(share=0.25), RolloutState(share=1.0)
NONE = MeanTimes(0, 0.0, 0.0)
MANY = MeanTimes(400, 0.01, 0.0001)


def drawn(dice: np.random.Generator, count: int, mean: float, spread: float) -> MeanTimes:
    """Log-normal times with this mean and this standard deviation in parts of it."""
    sigma = math.sqrt(math.log(1 + spread**2))
    found = dice.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
    return MeanTimes(count, float(found.mean()), float(found.std(ddof=1)) / math.sqrt(count))


def arm(times: MeanTimes, failures: int = 0) -> ArmCounts:
    return ArmCounts(times.count, failures, times, times)


def evidence(plain: ArmCounts, speculate: ArmCounts, drafts: ScoredDrafts = GOOD) -> RolloutEvidence:
    return RolloutEvidence(
        {"plain": plain, "shadow": arm(NONE), "speculate": speculate}, ScoredDrafts(0, 0, 0), drafts
    )


def of(name: str, found: list[Check]) -> Check:
    return next(each for each in found if each.name == name)


def verdicts(ratio: float, count: int, spread: float = 0.4, rounds: int = 400) -> Counter[BoundState]:
    """What is said of the time per token in so many roll-outs whose true ratio is this one."""
    dice = np.random.default_rng(5)
    found = Counter[BoundState]()
    for _ in range(rounds):
        two = arm(drawn(dice, 3 * count, 0.01, spread)), arm(drawn(dice, count, ratio * 0.01, spread))
        found[of("time per token", check(QUARTER, evidence(*two))).verdict] += 1
    return found


def test_an_equally_fast_server_seldom_breaks_the_speed_bound() -> None:
    assert verdicts(1.0, 400)[BoundState.BROKEN] <= 8
    assert verdicts(1.05, 400)[BoundState.BROKEN] / 400 == pytest.approx(0.05, abs=0.035)


def test_a_slower_server_seldom_holds_the_speed_bound() -> None:
    assert verdicts(1.05, 400)[BoundState.HOLDS] / 400 == pytest.approx(0.05, abs=0.035)
    assert verdicts(1.15, 400)[BoundState.HOLDS] == 0
    assert verdicts(1.15, 1500)[BoundState.BROKEN] > 380


def test_a_faster_server_holds_the_speed_bound_after_few_requests() -> None:
    assert verdicts(0.7, LEAST_REQUESTS)[BoundState.HOLDS] > 390


def test_the_number_of_further_requests_needed_decides_most_open_speed_bounds() -> None:
    """With as many more as were said, most roll-outs that were open are decided."""
    dice, decided, opened = np.random.default_rng(7), 0, 0
    for _ in range(200):
        two = arm(drawn(dice, 150, 0.01, 0.5)), arm(drawn(dice, 150, 0.0095, 0.5))
        found = of("time per token", check(QUARTER, evidence(*two)))
        if found.verdict is not BoundState.OPEN or found.needed > 20_000:
            continue
        opened += 1
        count = 150 + found.needed
        ratio = two[1].per_token.mean / two[0].per_token.mean
        more = evidence(arm(drawn(dice, count, 0.01, 0.5)), arm(drawn(dice, count, ratio * 0.01, 0.5)))
        decided += of("time per token", check(QUARTER, more)).verdict is not BoundState.OPEN
    assert opened > 50
    assert decided / opened > 0.4


def failing(plain: float, speculate: float, count: int, rounds: int = 1000) -> dict[BoundState, float]:
    """How often each is said of the errors of roll-outs whose true shares these are; a quarter has drafts."""
    dice, found = np.random.default_rng(9), Counter[BoundState]()
    for _ in range(rounds):
        two = [
            ArmCounts(number, int(dice.binomial(number, share)), NONE, NONE)
            for number, share in ((3 * count, plain), (count, speculate))
        ]
        found[of("errors", check(QUARTER, evidence(two[0], two[1]))).verdict] += 1
    return {verdict: found[verdict] / rounds for verdict in BoundState}


@pytest.mark.parametrize("count", [LEAST_REQUESTS, 1000])
def test_a_server_that_fails_equally_often_seldom_breaks_the_error_bound(count: int) -> None:
    assert failing(0.01, 0.01, count)[BoundState.BROKEN] < 0.01
    assert failing(0.05, 0.05, count)[BoundState.BROKEN] < 0.05
    assert failing(0.01, 0.02, count)[BoundState.BROKEN] == pytest.approx(0.05, abs=0.035)


def test_a_server_that_fails_more_often_seldom_holds_the_error_bound() -> None:
    assert failing(0.0, 0.01, 300)[BoundState.HOLDS] < 0.07
    assert failing(0.01, 0.02, 1000)[BoundState.HOLDS] == pytest.approx(0.05, abs=0.035)
    assert failing(0.01, 0.05, 1000)[BoundState.BROKEN] > 0.95


def test_a_server_that_never_fails_holds_the_error_bound_after_the_fewest_requests() -> None:
    assert failing(0.0, 0.0, FEWEST_WITHOUT_ERRORS)[BoundState.HOLDS] == 1
    assert failing(0.0, 0.0, FEWEST_WITHOUT_ERRORS - 1)[BoundState.OPEN] == 1


@pytest.mark.parametrize(("count", "failures"), [(0, 0), (60, 0), (100, 0), (150, 3), (400, 6)])
def test_the_number_of_further_requests_needed_decides_an_open_error_bound(count: int, failures: int) -> None:
    def errors(count: int, failures: float) -> Check:
        return of(
            "errors", check(ALL, evidence(arm(NONE), ArmCounts(count, math.ceil(failures), NONE, NONE)))
        )

    found = errors(count, failures)
    assert found.verdict is BoundState.OPEN
    factor = 1 + found.needed / count if count else 0
    assert errors(count + found.needed, factor * failures).verdict is not BoundState.OPEN


def test_errors_of_what_began_before_the_step_are_no_more_than_all() -> None:
    found = of("errors", check(QUARTER, evidence(arm(MANY), ArmCounts(120, 300, NONE, NONE))))
    assert found.verdict is BoundState.BROKEN
    assert found.found.startswith("100.0%, plain 0.0% (")


def test_too_few_are_counted() -> None:
    few = MeanTimes(30, 0.01, 0.0001)
    found = check(QUARTER, evidence(arm(replace(few, count=1000)), arm(few)))
    assert of("requests", found).needed == LEAST_REQUESTS - 30
    assert overall(found) is BoundState.OPEN
    assert {each.verdict for each in found} == {BoundState.OPEN}
    assert of("time per token", check(QUARTER, evidence(arm(few), arm(few)))).needed == LEAST_REQUESTS - 30


def test_each_bound_can_be_the_broken_one() -> None:
    plain, fast = arm(MeanTimes(1000, 0.01, 0.0001)), arm(MeanTimes(400, 0.006, 0.0001))
    assert overall(check(QUARTER, evidence(plain, fast))) is BoundState.HOLDS
    slow = replace(fast, per_token=MeanTimes(400, 0.02, 0.0001))
    # Plain requests have the four tokens of a draft that is accepted as GOOD is after 0.04 s.
    late = replace(fast, first_token=MeanTimes(400, 0.06, 0.0001))
    fair = replace(fast, first_token=MeanTimes(400, 0.04, 0.0001))
    assert overall(check(QUARTER, evidence(plain, fair))) is BoundState.HOLDS
    for broken, name in (
        (evidence(plain, slow), "time per token"),
        (evidence(plain, late), "first output"),
        (evidence(plain, replace(fast, failures=12)), "errors"),
        (evidence(plain, fast, ScoredDrafts(1000, 4000, 800)), "acceptance"),
        (evidence(plain, fast, ScoredDrafts(0, 0, 0)), "acceptance"),
    ):
        found = check(QUARTER, broken)
        assert [each.name for each in found if each.verdict is BoundState.BROKEN] == [name]
        assert overall(found) is BoundState.BROKEN
    # What fails without drafts too is not their fault.
    assert overall(check(QUARTER, evidence(replace(plain, failures=30), replace(fast, failures=4)))) is (
        BoundState.HOLDS
    )


def test_a_draft_that_is_its_target_breaks_the_bound_on_acceptance() -> None:
    some, every = arm(MeanTimes(300, 0.01, 0.0001)), ScoredDrafts(1000, 4000, 3990)
    seen = evidence(some, some, every)
    perfect = of("acceptance", check(QUARTER, replace(seen, of_engine=every)))
    assert (perfect.verdict, "is it the target itself" in perfect.found) == (BoundState.BROKEN, True)
    # All was looked up, in texts that say one thing again and again.
    assert of("acceptance", check(QUARTER, seen)).verdict is BoundState.HOLDS
    shadow = RolloutEvidence({"plain": some, "shadow": some, "speculate": arm(NONE)}, every, GOOD)
    assert of("acceptance", check(RolloutState("shadow", 0.5), shadow)).verdict is BoundState.BROKEN


@pytest.mark.parametrize(("accepted", "verdict"), [(1490, BoundState.BROKEN), (1510, BoundState.HOLDS)])
def test_acceptance_that_has_halved_lately_breaks_a_bound(accepted: int, verdict: BoundState) -> None:
    some = arm(MeanTimes(300, 0.01, 0.0001))
    before, since = evidence(some, some), evidence(some, some, ScoredDrafts(1000, 4000, accepted))
    assert of("acceptance lately", check(ALL, before, (before, since))).verdict is verdict
    few = evidence(some, arm(MeanTimes(LEAST_REQUESTS - 1, 0.01, 0.0001)), ScoredDrafts(10, 40, 0))
    assert "acceptance lately" not in {each.name for each in check(ALL, before, (before, few))}


def test_each_step_has_the_bounds_that_it_can_have() -> None:
    some = arm(MeanTimes(300, 0.01, 0.0001))
    shadow = RolloutEvidence(
        {"plain": some, "shadow": some, "speculate": arm(NONE)}, GOOD, ScoredDrafts(0, 0, 0)
    )
    assert check(RolloutState(share=0.0), shadow) == []
    names = [each.name for each in check(RolloutState("shadow", 0.5), shadow)]
    assert names == ["requests", "acceptance", "errors"]
    assert overall(check(RolloutState("shadow", 0.5), shadow)) is BoundState.HOLDS
    every = check(ALL, evidence(arm(NONE), some))
    assert [each.name for each in every] == ["requests", "acceptance", "errors"]
    assert overall(every) is BoundState.HOLDS


def look(stats: Stats, seconds: float, started: float = 1.0) -> dict[str, float]:
    return counted(parse(text_of(stats, seconds, started=started), seconds), "pair")


def test_means_and_their_errors_are_those_of_the_values_since() -> None:
    dice, stats = random.Random(3), Stats()
    arm = stats.rollout.arms["speculate"]

    def serve(count: int, mean: float) -> list[float]:
        values = [dice.lognormvariate(0, 0.3) * mean for _ in range(count)]
        for value in values:
            arm.requests += 1
            arm.time_per_output_token.observe(value)
        return values

    serve(500, 5.0)
    before = look(stats, 10.0)
    later = serve(200, 0.01)
    stats.rollout.arms["plain"].requests += 7
    stats.rollout.arms["plain"].failures += 2
    found = between(before, look(stats, 20.0))
    times = found.arms["speculate"].per_token
    assert (times.count, found.arms["speculate"].requests) == (200, 200)
    assert times.mean == pytest.approx(statistics.fmean(later), rel=1e-6)
    assert times.error == pytest.approx(statistics.stdev(later) / 200**0.5, rel=1e-3)
    assert (found.arms["plain"].requests, found.arms["plain"].failures) == (7, 2)
    assert found.arms["shadow"].per_token.count == 0


def test_the_counts_of_a_restarted_server_begin_at_its_start() -> None:
    old, new = Stats(), Stats()
    old.rollout.shadow.record(4, 4)
    old.rollout.shadow.record(4, 4)
    new.rollout.shadow.record(4, 1)
    for seconds in (5.0, 500.0):
        assert between(look(old, 100.0), look(new, seconds, started=150.0)).shadow == ScoredDrafts(1, 4, 1)
    assert between({}, look(new, 5.0)).shadow == ScoredDrafts(1, 4, 1)


def test_a_server_without_a_start_time_is_told_by_how_long_it_counts() -> None:
    old, new = Stats(), Stats()
    old.rollout.shadow.record(4, 4)
    new.rollout.shadow.record(4, 1)
    assert between(look(old, 100.0, started=0.0), look(new, 5.0, started=0.0)).shadow == ScoredDrafts(1, 4, 1)
    assert between(look(old, 100.0, started=0.0), look(old, 105.0, started=0.0)).shadow == ScoredDrafts(
        0, 0, 0
    )


def test_production_and_shadow_are_told_apart() -> None:
    stats = Stats()
    stats.by_origin["engine"].record(4, 3)
    stats.by_origin["lookup"].record(2, 2)
    stats.rollout.shadow.record(5, 1)
    found = between({}, look(stats, 1.0))
    assert isinstance(found, RolloutEvidence)
    assert (found.speculation, found.shadow) == (ScoredDrafts(2, 6, 5), ScoredDrafts(1, 5, 1))


@pytest.mark.parametrize("truth", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("lengths", [(4,), (8,), (1, 2, 3, 4, 5)])
def test_the_acceptance_of_a_token_is_found_again(truth: float, lengths: tuple[int, ...]) -> None:
    """Drafts whose tokens are accepted by dice, up to the first that is not."""
    dice, drafted, accepted, number = random.Random(1), 0, 0, 20_000
    for _ in range(number):
        length = dice.choice(lengths)
        taken = next((place for place in range(length) if dice.random() >= truth), length)
        drafted, accepted = drafted + length, accepted + taken
    found = ScoredDrafts(number, drafted, accepted)
    assert truth - (0.01 if len(lengths) == 1 else 0.03) <= found.per_token <= truth + 0.01
    assert found.share <= found.per_token + 0.01


def test_nothing_drafted_and_all_accepted_are_numbers_too() -> None:
    assert ScoredDrafts(0, 0, 0).per_token == ScoredDrafts(3, 12, 0).per_token == 0.0
    assert (ScoredDrafts(3, 12, 12).per_token, ScoredDrafts(3, 12, 12).share) == (1.0, 1.0)
