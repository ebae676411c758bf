"""The words of a verdict, and when they are said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.bench.results import figures
from trtspec.bench.result import Arms, Interval, Level, Load
from trtspec.bench.verdict import verdict


def levels(*speedups: tuple[float, float, float]) -> list[Level]:
    """Streams and the interval's middle and half width."""
    arms = Arms(figures(100), figures(50))
    return [
        Level(Load("streams", streams), arms, Interval(value, value - half, value + half))
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
    assert found.words == "1.9x ± 0.1 at 1 stream: leave it on"
    assert found.notes == ("8 streams: no speed-up is stated, since too few pairs of blocks have answers",)
