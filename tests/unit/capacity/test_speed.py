"""The speed of a replica: from a bench of it, and from the roofline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.measure.bench.results import result
from trtspec.base.errors import MeasureError
from trtspec.capacity.demand import Lengths, lognormal
from trtspec.capacity.speed import ForecastSpeed, MeasuredSpeed, measured_speeds, speed_of_levels
from trtspec.forecast.outlook import ForecastPair
from trtspec.forecast.roofline import BatchLoad, Chip, Network
from trtspec.forecast.speedup import tokens_per_round
from trtspec.measure.bench.result import (
    ArmFigures,
    Arms,
    DraftAcceptance,
    DraftFigures,
    Interval,
    LoadResult,
    OfferedLoad,
    Percentiles,
)

CHIP = Chip(4800e9, 450e9, 990e12, 1979e12)
TARGET = Network(70e9, 160e3, 140e9, 2e9, 2.6e6, 80, 16384)
DRAFT = Network(2.5e9, 32e3, 0, 2.5e9, 0.5e6, 16, 4096)
PAIR = ForecastPair(TARGET, DRAFT, CHIP, 100e-6, 8)
LENGTHS = lognormal(600, 200, 0.5)
ANSWER = 200
TIMES = {1: (0.04, 10e-3), 4: (0.1, 13e-3), 16: (0.4, 25e-3)}
"""The first token and each after it, by the number of streams."""


def same(seconds: float) -> Percentiles:
    return Percentiles(10, seconds, seconds, seconds, 2 * seconds, 3 * seconds)


def figures(streams: int, first: float, token: float, *, has_drafts: bool) -> ArmFigures:
    """The figures of a closed loop of streams whose answers all take as long."""
    rate = streams * ANSWER / (first + token * (ANSWER - 1))
    drafts = (
        DraftFigures("answers", DraftAcceptance(1000, 3000, 1500, (800, 500, 200))) if has_drafts else None
    )
    return ArmFigures(
        requests=10,
        errors={},
        seconds=10.0,
        input_tokens=1000,
        output_tokens=10 * ANSWER,
        tokens_per_second=Interval(rate, rate, rate),
        requests_per_second=1.0,
        time_to_first_token=same(first),
        inter_token=same(token),
        drafts=drafts,
    )


def levels() -> list[LoadResult]:
    return [
        LoadResult(
            OfferedLoad("streams", streams),
            Arms(
                figures(streams, first, token, has_drafts=True),
                figures(streams, first, 2 * token, has_drafts=False),
            ),
        )
        for streams, (first, token) in reversed(TIMES.items())
    ]


@pytest.mark.parametrize("has_drafts", [True, False])
def test_a_replica_is_as_fast_as_the_closed_loop_of_as_many_streams(has_drafts: bool) -> None:
    found = speed_of_levels(levels(), has_drafts=has_drafts)
    assert found is not None
    for streams, (first, token) in TIMES.items():
        times = found.at(streams, LENGTHS)
        each = token if has_drafts else 2 * token
        assert (times.first, times.token) == pytest.approx((first, each))
        assert (times.first_p95, times.token_p95) == pytest.approx((2 * first, 2 * each))
        assert times.answer(ANSWER) == pytest.approx(first + each * (ANSWER - 1))
        assert times.draft_length == (3 if has_drafts else 0)


def test_between_and_beyond_the_measured_levels_times_are_on_lines() -> None:
    found = speed_of_levels(levels(), has_drafts=True)
    assert found is not None
    assert found.at(10, LENGTHS).token == pytest.approx(19e-3)
    assert found.at(22, LENGTHS).token == pytest.approx(31e-3)
    lone = MeasuredSpeed(found.points[1:2])
    assert lone.at(1, LENGTHS) == lone.at(9, LENGTHS) == found.points[1][1]


def test_the_spread_is_the_widest_interval_of_the_bench() -> None:
    found = speed_of_levels(levels(), has_drafts=True)
    assert found is not None
    assert found.spread == 0.03
    wide, *rest = levels()
    rate = wide.arms.speculative.tokens_per_second.value
    interval = Interval(rate, 0.8 * rate, 1.3 * rate)
    arms = Arms(replace(wide.arms.speculative, tokens_per_second=interval))
    found = speed_of_levels([replace(wide, arms=arms), *rest], has_drafts=True)
    assert found is not None
    assert found.spread == pytest.approx(0.25)


def test_a_bench_without_drafts_beside_has_no_plain_arm(tmp_path: Path) -> None:
    alone = tuple(replace(one, arms=replace(one.arms, plain=None)) for one in levels())
    assert measured_speeds(replace(result(), levels=alone), tmp_path)[0] is None


def test_a_rate_says_nothing_of_running_sequences(tmp_path: Path) -> None:
    by_rate = tuple(replace(one, load=OfferedLoad("rate", 2.0)) for one in levels())
    with pytest.raises(MeasureError, match="has no level of streams"):
        measured_speeds(replace(result(), levels=by_rate), tmp_path)


def test_a_forecast_drafts_with_the_largest_goodput() -> None:
    best = ForecastSpeed(PAIR, 0.7).at(4, LENGTHS)
    fixed = [ForecastSpeed(PAIR, 0.7, length).at(4, LENGTHS) for length in range(9)]
    assert [one.draft_length for one in fixed] == list(range(9))
    assert best in fixed
    assert best.token == pytest.approx(min(one.token for one in fixed), rel=0.01)
    assert ForecastSpeed(PAIR, 0.0).at(4, LENGTHS).draft_length == 0


def test_a_lone_request_takes_its_rounds_and_one_reading() -> None:
    """With prompts of one token, which cost nothing, an answer is as many rounds as its tokens need."""
    lengths, speed = Lengths(((1, 1001),)), ForecastSpeed(PAIR, 0.7, 4)
    plain = ForecastSpeed(PAIR, length=0).at(1, lengths).token
    drafts = speed.at(1, lengths).token
    load = BatchLoad(1, round(lengths.context))
    costs = PAIR.costs(load, 4)
    assert plain == pytest.approx(1 / PAIR.plain_tokens_per_second(load), rel=0.01)
    assert drafts / plain == pytest.approx(costs.of(4) / tokens_per_round([0.7] * 4), rel=0.01)
    many = speed.at(8, Lengths(((2000, 1001),)))
    assert many.first > 3 * speed.at(8, lengths).first
