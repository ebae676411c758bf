from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.forecast.test_roofline import CHIP, TARGET
from trtspec.forecast.outlook import Best, ForecastPair, best, break_even, gain_range, within
from trtspec.forecast.roofline import BatchLoad
from trtspec.forecast.speedup import speedup

DRAFT = replace(TARGET, weight_bytes=50.0, kv_bytes=0.1)
PAIR = ForecastPair(TARGET, DRAFT, CHIP, overhead_s=0.01, longest=8)
ALONE, BUSY = BatchLoad(1, 10), BatchLoad(64, 10)


def test_the_best_length_is_better_than_its_neighbours() -> None:
    found = best(PAIR, ALONE, 0.7)
    assert 1 < found.length < 8
    for length in (found.length - 1, found.length + 1):
        assert speedup([0.7] * length, PAIR.costs(ALONE, length)) < found.speedup
    assert best(PAIR, ALONE, 0.95).length == 8
    assert best(PAIR, ALONE, 0.95, longest=16).length > 8


def test_load_makes_drafts_shorter_and_then_useless() -> None:
    assert best(PAIR, BatchLoad(16, 10), 0.7).length < best(PAIR, ALONE, 0.7).length
    assert best(PAIR, BUSY, 0.3) == Best(0, 1.0)


def test_drafts_gain_from_break_even_on() -> None:
    even = break_even(PAIR, ALONE)
    assert even is not None
    assert best(PAIR, ALONE, even + 0.01).speedup > 1
    assert best(PAIR, ALONE, even - 0.01).length == 0
    # With one draft token a gain needs `a > c + o + v`, as Leviathan's corollary 3.9 says for `o = v = 0`.
    costs = PAIR.costs(ALONE, 1)
    assert even <= costs.of(1) - 1 + 1e-4
    assert break_even(replace(PAIR, draft=replace(TARGET, weight_bytes=1e6)), ALONE) is None


def test_the_forecast_charges_no_draft_time_without_a_draft_model() -> None:
    free = replace(PAIR, draft=None)
    assert free.costs(ALONE, 3).draft == 0
    assert best(free, ALONE, 0.5).speedup > best(PAIR, ALONE, 0.5).speedup
    assert free.plain_tokens_per_second(ALONE) == pytest.approx(PAIR.plain_tokens_per_second(ALONE))


def test_a_gain_near_one_is_to_be_measured() -> None:
    assert [within(gain, 0.1).verdict for gain in (0.8, 0.95, 1.05, 1.2)] == [
        "no",
        "measure",
        "measure",
        "yes",
    ]
    assert within(1.4, 0.09).low == pytest.approx(1.4 / 1.09)
    even = break_even(PAIR, ALONE)
    assert even is not None
    assert gain_range(PAIR, ALONE, even).verdict == "measure"
    assert gain_range(PAIR, BUSY, 0.1).verdict == "no"
