"""The pure parts of a canary: its steps, the moves between them, and what histograms tell."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.unit.deployment.rollout.metrics import text_of
from trtspec.client import scrape
from trtspec.cluster.kubernetes.canary.evidence import arm, counted, grown
from trtspec.cluster.kubernetes.canary.standing import PodCounts, counts_of, moves, steps_for
from trtspec.serving.stats import Stats


@pytest.mark.parametrize(
    ("replicas", "steps"),
    [
        (1, (0, 0.5, 1)),
        (2, (0, 0.5, 1)),
        (3, (0, 0.5, 1)),
        (4, (0, 0.25, 0.5, 1)),
        (20, (0, 0.05, 0.25, 0.5, 1)),
    ],
)
def test_few_pods_have_few_steps(replicas: int, steps: tuple[float, ...]) -> None:
    assert steps_for(replicas, has_weights=False) == steps
    assert steps_for(replicas, has_weights=True) == (0, 0.05, 0.25, 0.5, 1)


@given(replicas=some.integers(1, 200), share=some.sampled_from((0.05, 0.25, 0.5)))
def test_both_builds_serve_and_no_pod_is_missing(replicas: int, share: float) -> None:
    counts = counts_of(share, replicas)
    assert min(counts.stable, counts.canary) >= 1
    assert counts.stable + counts.canary == max(replicas, 2)
    assert counts.canary / (counts.stable + counts.canary) <= max(share + 0.5 / replicas, 1 / counts.stable)


@given(
    now=some.builds(PodCounts, some.integers(0, 12), some.integers(0, 12)),
    then=some.builds(PodCounts, some.integers(0, 12), some.integers(0, 12)),
    surge=some.booleans(),
)
def test_moves_are_of_one_pod_and_keep_the_number(now: PodCounts, then: PodCounts, surge: bool) -> None:
    before, total = now, now.stable + now.canary
    for each in moves(now, then, surge=surge):
        assert abs(each.stable - before.stable) + abs(each.canary - before.canary) == 1
        if total == then.stable + then.canary:
            pods = each.stable + each.canary
            assert pods in ((total, total + 1) if surge else (total - 1, total))
        before = each
    assert before == then


def test_times_of_histograms_are_those_of_the_values() -> None:
    random.seed(1)
    stats, firsts = Stats(), []
    for _ in range(500):
        firsts.append(random.lognormvariate(-2, 0.5))
        stats.time_to_first_token.observe(firsts[-1])
        stats.ended["stop"] += 1
        stats.generation_tokens += 1 + 3 * 20
        for _ in range(20):
            stats.inter_token_latency.observe(random.uniform(0.02, 0.04))
    found = arm(counted(scrape.parse(text_of(stats, 9.0), 0.0), "pair"))
    mean = sum(firsts) / 500
    error = math.sqrt(sum((each - mean) ** 2 for each in firsts) / 499 / 500)
    assert found.first_token.count == 500
    assert found.first_token.mean == pytest.approx(mean)
    assert found.first_token.error == pytest.approx(error, rel=0.25)
    assert found.per_token.mean == pytest.approx(0.01, rel=0.02)
    # Outputs of one completion may be alike, so each completion counts once.
    spread = 0.02 / math.sqrt(12) / 0.03
    assert found.per_token.error == pytest.approx(0.01 * spread / math.sqrt(500), rel=0.5)


def test_a_pod_that_was_started_anew_counts_from_its_start() -> None:
    stats = Stats()
    stats.ended["stop"], stats.failures["internal"] = 7, 2
    before = {"a": counted(scrape.parse(text_of(stats, 50.0), 0.0), "pair")}
    again = Stats()
    again.ended["stop"] = 3
    for seconds in (5.0, 500.0):
        now = {"a": counted(scrape.parse(text_of(again, seconds, started=60.0), 0.0), "pair")}
        found = arm(grown(before, now))
        assert (found.requests, found.failures) == (3, 0)
    assert arm(grown(before, before)).requests == 0
    assert arm(grown({}, before)).requests == 9
