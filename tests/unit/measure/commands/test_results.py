"""The tables of a bench fit a terminal of 80 columns, whatever was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.bench_result import result
from trtspec.measure.bench.result import Arms, BenchResult, BenchVerdict, Interval, OfferedLoad
from trtspec.measure.commands.results import ShownBench


def large() -> BenchResult:
    """As wide as numbers get: thousands of streams, millions of tokens, waits of minutes."""
    found = result({1: 1.93, 1024: 0.74})
    last = found.levels[-1]
    figures = last.arms.speculative
    waits = figures.end_to_end
    assert waits is not None
    longest = replace(waits, p50=1234.0, p99=7000.0)
    busy = replace(
        figures,
        tokens_per_second=Interval(1_234_567.0, 1e6, 2e6),
        errors={"refused": 12_345},
        time_to_first_token=longest,
        end_to_end=longest,
    )
    return replace(found, levels=(found.levels[0], replace(last, arms=Arms(busy, busy))))


def test_a_result_fits(capsys: pytest.CaptureFixture[str]) -> None:
    ShownBench(large()).tell()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == large().verdict.words
    rows = [line.split() for line in lines]
    assert ["1", "1.93x", "1.88", "-", "1.98", "97.4", "50.5", "65%", "2.49", "0"] in rows
    assert [
        "without",
        "40.0",
        "ms",
        "108",
        "ms",
        "20.8",
        "ms",
        "56.2",
        "ms",
        "4.22",
        "s",
        "11.4",
        "s",
    ] in rows


def test_an_unknown_figure_is_shown_as_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    found = result({4: 1.5})
    (level,) = found.levels
    figures = replace(level.arms.speculative, drafts=None, end_to_end=None)
    bare = replace(level, load=OfferedLoad("rate", 0.5), arms=Arms(figures), speedup=None)
    ShownBench(
        replace(found, levels=(bare,), verdict=BenchVerdict("nothing to compare with", "unmeasured"))
    ).tell()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["0.5", "-", "-", "279", "-", "-", "-", "0"] in rows
    assert rows[-1][-2:] == ["-", "-"]
    assert rows[2][0] == "asked/s"
