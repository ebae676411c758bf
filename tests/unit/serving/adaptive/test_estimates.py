from __future__ import annotations

import pytest

from trtspec.serving.adaptive.acceptance import Acceptance, expected_tokens
from trtspec.serving.adaptive.round_times import LARGEST, Mean, RoundTimes


def test_expected_tokens_are_those_of_the_observed_rates() -> None:
    own, overall = Acceptance(4, keep=1.0), Acceptance(4, keep=1.0)
    for _ in range(10_000):
        overall.record(4, 2)
    tokens = expected_tokens(own, overall, 4, load=1)
    assert tokens[:3] == pytest.approx([1, 2, 3], abs=1e-3)
    assert tokens[4] - tokens[3] < 1e-3


def test_unobserved_positions_are_like_the_one_before() -> None:
    overall = Acceptance(8, keep=1.0)
    for number in range(10_000):
        overall.record(1, number % 2)
    tokens = expected_tokens(Acceptance(8, keep=1.0), overall, 3, load=1)
    assert tokens == pytest.approx([1, 1.5, 1.75, 1.875], abs=1e-3)


def test_what_is_forgotten_counts_no_more() -> None:
    own, overall = Acceptance(2, keep=0.9), Acceptance(2, keep=0.9)
    for _ in range(100):
        own.record(2, 0)
    own.fade(0.0)
    assert expected_tokens(own, overall, 1, load=1) == pytest.approx([1, 1.7])


def test_rounds_that_were_not_seen_are_on_the_line() -> None:
    times = RoundTimes(8)
    assert times.fitted == []
    for _ in range(5):
        times.record(2, 0.010)
        times.record(4, 0.014)
    assert times.fitted == pytest.approx([0.006 + 0.002 * length for length in range(1, 9)])


def test_longer_rounds_never_seem_shorter_than_what_was_seen() -> None:
    times = RoundTimes(4)
    for _ in range(3):
        times.record(1, 0.020)
        times.record(2, 0.010)
    assert times.fitted[0] == pytest.approx(0.020)
    assert min(times.fitted[2:]) > 0


def test_one_long_pause_moves_a_mean_by_little() -> None:
    mean = Mean()
    for _ in range(24):
        mean.record(1.0)
    mean.record(1000.0)
    assert mean.seconds <= 1 + LARGEST / 24
