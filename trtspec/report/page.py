"""The report of one result."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.bench.result import Result
from trtspec.report import drafts, loads, requests, rounds, speed
from trtspec.report.advice import TONES, advice, headline, warnings
from trtspec.report.facts import facts, when
from trtspec.report.latency import latencies
from trtspec.report.numbers import duration, interval, percent, plain, times
from trtspec.report.section import Page, Section, Tile


def page(result: Result) -> Page:
    """Returns the report of a result, which has at least one level."""
    sections = (
        speed.throughput(result),
        *latencies(result),
        requests.goodput(result),
        drafts.acceptance(result),
        drafts.categories(result),
        rounds.times(result),
        rounds.server(result),
        requests.counts(result),
    )
    model = result.model
    return Page(
        title=model.recipe or model.name,
        subject=_subject(result),
        tone=TONES[result.verdict.decision],
        verdict=headline(result),
        because=_sentence(result.verdict.words),
        advice=advice(result),
        hero=speed.speedup_plot(result),
        tiles=tuple(_tiles(result)),
        sections=tuple(section for section in sections if isinstance(section, Section)),
        facts=facts(result),
        warnings=warnings(result),
    )


def _subject(result: Result) -> str:
    model = result.model
    pair = f"{model.target} drafted by {model.draft}" if model.target and model.draft else model.target
    parts = (pair, f"on {result.workload.name}", when(result.settings.started))
    return " · ".join(part for part in parts if part)


def _sentence(words: str) -> str:
    return words if words.endswith((".", "!", "?")) else f"{words}."


def _tiles(result: Result) -> Iterator[Tile]:
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
            "Break-even", loads.at(result.levels, result.verdict.break_even), "above it drafts cost time"
        )
    beside = f"{plain(without.tokens_per_second.value)} without drafts" if without else ""
    yield Tile(f"Tokens/s at {first.load}", plain(ours.tokens_per_second.value), beside)
    if ours.time_to_first_token:
        other = without.time_to_first_token if without else None
        beside = f"{duration(other.p50)} without drafts" if other else "in the median"
        yield Tile(f"First text at {first.load}", duration(ours.time_to_first_token.p50), beside)
    known = list(drafts.drafts_of(result))
    if known:
        whole = drafts.together(part.acceptance for part in known)
        words = f"of all drafted {percent(whole.rate)}; {plain(whole.tokens_per_verification)} tokens a round"
        yield Tile("Acceptance of a token", percent(drafts.per_token(whole)), words)
    asked = sum(figures.requests for _, _, figures in requests.arms(result))
    failed = sum(figures.failed for _, _, figures in requests.arms(result))
    yield Tile("Requests failed", f"{failed:,}", f"of {asked:,}")
