"""The evidence against what was observed: the server's own metrics, written and read again."""

from __future__ import annotations

import random
import statistics

import pytest

from tests.unit.deployment.rollout.metrics import text_of
from trtspec.client.scrape import parse
from trtspec.deployment.rollout.bounds import RolloutEvidence, ScoredDrafts, between, counted
from trtspec.serving.stats import Stats


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


def test_a_server_that_was_started_anew_counts_from_its_start() -> None:
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
