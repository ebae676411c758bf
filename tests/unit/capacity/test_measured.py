"""The times of a replica from a bench of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.measure.bench.results import result
from trtspec.base.errors import MeasureError
from trtspec.capacity.measured import MeasuredLatency, measured, of_levels
from trtspec.capacity.tempo import Turn
from trtspec.measure.bench.result import (
    ArmFigures,
    Arms,
    BenchResult,
    DraftAcceptance,
    DraftFigures,
    Inside,
    Interval,
    LoadResult,
    MeanRoundTimes,
    OfferedLoad,
    Percentiles,
)

PROMPT, ANSWER, READ_S = 100, 200, 20e-3


def same(seconds: float) -> Percentiles:
    return Percentiles(10, seconds, seconds, seconds, seconds, seconds)


def figures(streams: int, turn: Turn) -> ArmFigures:
    """What a closed loop of streams shows whose every cycle reads all prompts, evenly among the turns."""
    turns = (ANSWER + (turn.tokens - 1) / 2) / turn.tokens
    cycle = turns * turn.seconds + streams * READ_S
    first = turn.seconds + READ_S + (streams - 1) * READ_S / turns
    counts = tuple(round(1000 * share) for share in turn.survival)
    drafts = (
        DraftFigures("answers", DraftAcceptance(1000, 1000 * len(counts), sum(counts), counts))
        if counts
        else None
    )
    rate = streams * ANSWER / cycle
    return ArmFigures(
        10,
        {},
        10.0,
        10 * PROMPT,
        10 * ANSWER,
        Interval(rate, rate, rate),
        1.0,
        same(first),
        same((cycle - first) / (ANSWER - 1)),
        drafts=drafts,
        inside=Inside(MeanRoundTimes(0.005, 0.014, 0.001)) if drafts else Inside(),
    )


TURNS = {1: Turn(20e-3, (0.8, 0.6)), 4: Turn(26e-3, (0.7, 0.5)), 16: Turn(50e-3, (0.7, 0.5))}


def levels() -> list[LoadResult]:
    plain = {streams: Turn(turn.seconds / 2) for streams, turn in TURNS.items()}
    return [
        LoadResult(
            OfferedLoad("streams", streams), Arms(figures(streams, turn), figures(streams, plain[streams]))
        )
        for streams, turn in reversed(TURNS.items())
    ]


@pytest.mark.parametrize("has_drafts", [True, False])
def test_a_closed_loop_tells_its_turns(has_drafts: bool) -> None:
    found = of_levels(levels(), has_drafts=has_drafts)
    assert found is not None
    for streams, turn in TURNS.items():
        seen = found.turn(streams, 500)
        assert seen.seconds == pytest.approx(turn.seconds / (1 if has_drafts else 2), rel=0.01)
        assert seen.tokens == pytest.approx(turn.tokens if has_drafts else 1)
        # The server's metrics said that a quarter of a round goes to the draft.
        assert seen.drafting_s == pytest.approx(seen.seconds / 4 if has_drafts else 0.0)
    assert found.prompt_s(PROMPT, has_drafts) == pytest.approx(READ_S, rel=0.05)
    assert found.prompt_s(3 * PROMPT, has_drafts) == pytest.approx(3 * READ_S, rel=0.05)


def test_between_and_beyond_what_was_measured() -> None:
    found = of_levels(levels(), has_drafts=True)
    assert found is not None
    assert found.turn(10, 0).seconds == pytest.approx(38e-3, rel=0.01)
    assert found.turn(22, 0).seconds == pytest.approx(62e-3, rel=0.01)
    assert found.turn(2, 0).survival == pytest.approx((0.8 - 0.1 / 3, 0.6 - 0.1 / 3))
    lone = MeasuredLatency(found.points[1:2], 0.0)
    assert lone.turn(1, 0) == lone.turn(9, 0) == found.points[1][1]


def test_a_bench_without_drafts_beside_has_no_plain_arm(tmp_path: Path) -> None:
    alone = replace(
        result(), levels=tuple(replace(one, arms=replace(one.arms, plain=None)) for one in levels())
    )
    assert measured(alone, tmp_path)[0] is None


def test_a_rate_tells_no_turns(tmp_path: Path) -> None:
    by_rate: BenchResult = replace(
        result(), levels=tuple(replace(one, load=OfferedLoad("rate", 2.0)) for one in levels())
    )
    with pytest.raises(MeasureError, match="has no level of streams"):
        measured(by_rate, tmp_path)
