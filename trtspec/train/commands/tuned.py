"""Prints the result of tuning, for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.cli.terminal.output import out
from trtspec.train.tune.outcome import why

if TYPE_CHECKING:
    from trtspec.measure.bench.result import Interval
    from trtspec.train.tune.outcome import TuneOutcome
    from trtspec.train.tune.race import Run
    from trtspec.train.tune.score import CategoryScore, Score


def print_outcome(found: TuneOutcome, recipe: Path | None) -> None:
    """Prints the best candidate, why the others lost, the best K, and the categories with low acceptance."""
    speed = (
        "rounds timed on this machine" if found.is_measured else "times of rounds from the plan for the GPUs"
    )
    at_once = f"{found.streams} texts at once" if found.streams > 1 else "one text at a time"
    out.sentence(f"{found.answers} answers, {at_once}, {speed}; speed-up over the target alone")
    rows = []
    for standing in found.standings:
        cells = _cells(standing.run.best) if standing.run else ("",) * 5
        rows.append((standing.candidate.name, *cells, why(standing, found)))
    out.table(rows, header=("candidate", "K", "speed-up", "accepted", "of drafted", "tokens a round", ""))
    out.result()
    if found.best and found.best.run:
        _print_lengths(found.best.candidate.name, found.best.run)
    for advice in found.advice:
        out.warning(str(advice))
    if recipe is None:
        out.status("the target alone is fastest, so no recipe is written: serve it without drafts")
    else:
        out.status(f"written: {recipe}")


def _cells(score: Score) -> tuple[str, ...]:
    tokens = f"{score.acceptance.tokens_per_round:.2f}"
    return (str(score.length), *_accepted(score), tokens)


def _accepted(score: Score | CategoryScore) -> tuple[str, str, str]:
    accepted = score.acceptance
    return _interval(score.speedup), _percent(accepted.per_token), _percent(accepted.of_drafted)


def _print_lengths(name: str, run: Run) -> None:
    scores = sorted(run.scores, key=lambda score: score.length)
    out.sentence(f"{name} by K; `accepted` is the share of tokens whose predecessors were accepted")
    rows = [(*_cells(score), f"{score.speedup.value / run.costs.plain_s:.0f}") for score in scores]
    out.table(rows, ("K", "speed-up", "accepted", "of drafted", "tokens a round", "tokens/s of a text"))
    out.result()
    if len(run.best.by_category) < 2:
        return
    out.result(f"by category, with K = {run.best.length}")
    found = sorted(run.best.by_category.items())
    told = [(category, score.answers, *_accepted(score)) for category, score in found]
    out.table(told, ("category", "answers", "speed-up", "accepted", "of drafted"))
    out.result()


def _interval(found: Interval) -> str:
    if found.low <= 0:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
