"""The words of a verdict, and when they are said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.measure.bench.results import figures, result
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import Arms, BenchResult, Interval, LoadResult, OfferedLoad
from trtspec.measure.bench.sample import Block, LoadSamples, RequestSample
from trtspec.measure.bench.summary import summary, verdict
from trtspec.measure.workloads.workload import Prompt, Workload


def levels(*speedups: tuple[float, float, float]) -> list[LoadResult]:
    """Streams and the interval's middle and half width."""
    arms = Arms(figures(100), figures(50))
    return [
        LoadResult(OfferedLoad("streams", streams), arms, Interval(value, value - half, value + half))
        for streams, value, half in speedups
    ]


@pytest.mark.parametrize(
    ("speedups", "words", "decision", "break_even"),
    [
        (
            [(1, 1.9, 0.1), (16, 1.2, 0.1), (32, 0.88, 0.05)],
            "1.9x ± 0.1 at 1 stream, break-even at 24, switch off above",
            "up_to",
            24,
        ),
        ([(1, 1.9, 0.1)], "1.9x ± 0.1 at 1 stream: leave it on", "on", None),
        (
            [(1, 1.9, 0.1), (4, 1.5, 0.1), (16, 1.25, 0.04)],
            "1.9x ± 0.1 at 1 stream, 1.25x ± 0.04 at 16 streams: leave it on, "
            "at each of the 3 loads that were measured",
            "on",
            None,
        ),
        ([(1, 0.8, 0.05), (8, 0.6, 0.05)], "0.80x ± 0.05 at 1 stream: switch it off", "off", None),
        ([(1, 1.0, 0.05)], "no difference was found: 1.00x ± 0.05 at 1 stream", "undecided", None),
        (
            [(1, 1.4, 0.1), (8, 1.02, 0.05)],
            "1.4x ± 0.1 at 1 stream, no difference found from 8 streams on (1.02x ± 0.05)",
            "up_to",
            None,
        ),
        (
            [(1, 1.4, 0.1), (8, 1.02, 0.05), (32, 0.8, 0.05)],
            "1.4x ± 0.1 at 1 stream, break-even at 9, switch off above",
            "up_to",
            9,
        ),
        (
            [(1, 1.4, 0.1), (4, 1.05, 0.1), (8, 0.98, 0.1), (16, 0.7, 0.05)],
            "1.4x ± 0.1 at 1 stream, break-even at 6.5, switch off above",
            "up_to",
            6.54,
        ),
        (
            [(1, 0.8, 0.05), (8, 1.4, 0.1)],
            "it depends: 0.80x ± 0.05 at 1 stream, 1.4x ± 0.1 at 8 streams",
            "undecided",
            None,
        ),
    ],
)
def test_words(
    speedups: list[tuple[float, float, float]], words: str, decision: str, break_even: float | None
) -> None:
    found = verdict(levels(*speedups))
    assert (found.words.replace("9.0", "9"), found.decision) == (words, decision)
    assert found.break_even == (None if break_even is None else pytest.approx(break_even, rel=0.03))


def test_loads_may_come_in_any_order() -> None:
    found = levels((1, 1.9, 0.1), (16, 1.2, 0.1), (32, 0.88, 0.05))
    assert verdict(found[::-1]) == verdict(found)


def test_without_a_plain_arm_no_speedup_is_stated() -> None:
    (level,) = levels((1, 1.9, 0.1))
    found = verdict([replace(level, arms=Arms(figures(100)), speedup=None)])
    assert found.decision == "unmeasured"
    assert "--baseline URL" in found.words
    assert verdict([]).words == "nothing was measured"


def test_a_level_without_answers_is_named() -> None:
    first, second = levels((1, 1.9, 0.1), (8, 1.9, 0.1))
    found = verdict([first, replace(second, speedup=None)])
    assert found.words == "1.9x ± 0.1 at 1 stream: leave it on, at 1 of the 2 loads that were measured"
    assert found.notes == ("8 streams: no speed-up is stated, since too few pairs of blocks have answers",)


def summed_up(load: OfferedLoad, refused: int) -> BenchResult:
    """Six pairs of 100 requests, 2 s each with drafts and 1.6 s without, of which so many are refused."""
    answer = RequestSample("p", "c", 0, 0.0, 0.0, 2.0, (2.0,), 10, 100)
    quick = replace(answer, ended=1.6, pieces=(1.6,))
    refusal = replace(answer, ended=0.01, pieces=(), error="refused", problem="503")
    with_drafts = Block((answer,) * 100, 3.0, 3.0)
    plain = Block((refusal,) * refused + (quick,) * (100 - refused), 3.0, 3.0)
    plan = BenchPlan(Workload("w", "w", (Prompt("p", ("x",)),)), (load,), paired=True)
    measured = LoadSamples(load, [{"speculative": with_drafts, "plain": plain} for _ in range(6)])
    return summary(plan, result(), [measured], is_partial=False)


def test_at_a_rate_who_refuses_many_is_not_called_faster() -> None:
    rate = OfferedLoad("rate", 10)
    assert summed_up(rate, 1).verdict.decision == "off"
    found = summed_up(rate, 60)
    assert (found.levels[0].speedup, found.verdict.decision) == (None, "unmeasured")
    assert (
        "10 requests/s: no speed-up is stated, since more than 1% of the requests of an arm failed; a lower "
        "--rate avoids that"
    ) in found.verdict.notes
    # Streams are compared by tokens a second, which refused requests have none of.
    assert summed_up(OfferedLoad("streams", 10), 60).verdict.decision == "on"
