"""Makes the report of one result."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.measure.bench.result import BenchResult
from trtspec.measure.report import drafts, requests, rounds, speed
from trtspec.measure.report.advice import TONES, advice, headline, warnings
from trtspec.measure.report.facts import facts, when
from trtspec.measure.report.latency import latencies
from trtspec.measure.report.measured import between, of_result
from trtspec.measure.report.numbers import duration, interval, percent, plain, times
from trtspec.measure.report.section import Page, Tile


def page(result: BenchResult) -> Page:
    """Returns the report of a result, which has at least one level."""
    measured, gain = of_result(result), speed.gain_of(result)
    sections = (
        speed.throughput(measured, gain),
        *latencies(measured),
        requests.goodput(measured, result.settings.targets),
        drafts.acceptance(measured),
        drafts.categories(measured),
        rounds.times(measured),
        rounds.server(measured),
        requests.counts(measured),
    )
    model = result.model
    return Page(
        title=model.recipe or model.name,
        subject=_subject(result),
        tone=TONES[result.verdict.decision],
        verdict=headline(result),
        because=_sentence(result.verdict.words),
        advice=advice(result),
        hero=speed.gain_plot(gain) or speed.speed_plot(measured),
        tiles=tuple(_tiles(result)),
        sections=tuple(section for section in sections if section),
        facts=facts(result),
        command=result.settings.command,
        warnings=warnings(result),
    )


def _subject(result: BenchResult) -> str:
    model = result.model
    pair = f"{model.target} drafted by {model.draft}" if model.target and model.draft else model.target
    parts = (pair, f"on {result.workload.name}", when(result.settings.started))
    return " · ".join(part for part in parts if part)


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")


def _tiles(result: BenchResult) -> Iterator[Tile]:
    first = result.levels[0]
    ours, without = first.arms.speculative, first.arms.plain
    if first.speedup:
        ends = interval(first.speedup.low, first.speedup.high)
        yield Tile(
            f"Speed-up at {first.load}",
            times(first.speedup.value),
            f"{ends} ({result.settings.confidence:.0%})",
        )
    if result.verdict.break_even is not None:
        yield Tile(
            "Break-even", between([first.load], result.verdict.break_even), "above it drafts cost time"
        )
    beside = f"{plain(without.tokens_per_second.value)} without drafts" if without else ""
    yield Tile(f"Tokens/s at {first.load}", plain(ours.tokens_per_second.value), beside)
    if ours.time_to_first_token:
        other = without.time_to_first_token if without else None
        beside = f"{duration(other.p50)} without drafts" if other else "in the median"
        yield Tile(f"First text at {first.load}", duration(ours.time_to_first_token.p50), beside)
    measured = of_result(result)
    found = drafts.whole(measured.arms[0])
    if found:
        words = f"of all drafted {percent(found.rate)}; {plain(found.tokens_per_verification)} tokens a round"
        yield Tile("Acceptance of a token", percent(drafts.per_token(found)), words)
    asked = sum(figures.requests for _, _, figures in measured.each())
    failed = sum(figures.failed for _, _, figures in measured.each())
    yield Tile("Requests failed", f"{failed:,}", f"of {asked:,}")
