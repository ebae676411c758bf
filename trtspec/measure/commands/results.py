"""Shows a bench: its progress, and its result as tables that fit a terminal of 80 columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from trtspec.base.progress import Advance
from trtspec.cli.terminal.output import out
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import ArmFigures, BenchResult, LoadResult, OfferedLoad, to_json
from trtspec.measure.bench.sample import ArmName, RequestSample
from trtspec.measure.html.arms import MeasuredArms, of_result
from trtspec.measure.html.numbers import NOTHING, duration, interval, percent, plain, times
from trtspec.measure.html.sections import per_token


class Measuring(ExitStack):
    """Shows the servers found, and for each load the number of answered prompts and the result so far."""

    def __init__(self) -> None:
        super().__init__()
        self._advance: Advance | None = None
        self._failed, self._said = 0, ""

    def __call__(self, of: BenchResult, plan: BenchPlan) -> Measuring:
        """Called with the servers found, before anything is measured."""
        server = of.server
        how = {
            "request": "alternating with the same server without drafts",
            "baseline": f"alternating with {server.baseline_url}",
            "none": "without a baseline",
        }[server.plain_by]
        out.status(f"{of.model.name} of {server.software or server.api} at {server.url}, {how}")
        categories = len([name for name in plan.workload.categories if name])
        prompts = f"{len(plan.workload.prompts)} prompts{f' in {categories} categories' * (categories > 1)}"
        out.status(f"{plan.workload.source}: {prompts}, {plan.num_blocks} blocks")
        return self

    def began(self, load: OfferedLoad, prompts: int) -> None:
        self.close()
        self._failed, self._said = 0, "warming up"
        self._advance = self.enter_context(out.progress(str(load), prompts))
        self._advance(0, self._said)

    def warm(self) -> None:
        self._said = "measuring"
        self._tell(0)

    def heard(self, arm: ArmName, sample: RequestSample) -> None:
        self._failed += sample.error is not None
        self._tell(1 if sample.turn == 0 else 0)

    def paired(self, result: BenchResult) -> None:
        if result.levels and (speedup := result.levels[-1].speedup):
            self._said = f"{times(speedup)} ({interval(speedup)})"
            self._tell(0)

    def _tell(self, amount: int) -> None:
        if self._advance:
            failed = f", {self._failed} failed" if self._failed else ""
            self._advance(amount, self._said + failed)


@dataclass(frozen=True, slots=True)
class ShownBench:
    """The result of a bench."""

    result: BenchResult

    def tell(self) -> None:
        """Prints the verdict, the speed-up at each load, and the latencies."""
        out.sentence(self.result.verdict.words)
        if not self.result.levels:
            return
        measured = of_result(self.result)
        out.result()
        interval_of = f"{self.result.settings.confidence:.0%} interval"
        header = ("speed-up", interval_of, "tokens/s", "without", "accepted", "a round", "failed")
        out.table(map(_gained, self.result.levels), (measured.header[0], *header))
        out.result()
        if reused := list(_reused(self.result.levels)):
            out.table(reused, (measured.header[0], "of prompts' tokens from the KV cache", "without drafts"))
            out.result()
        _print_waits(measured)

    def as_json(self) -> Any:
        return json.loads(to_json(self.result))


def _print_waits(measured: MeasuredArms) -> None:
    rows, last = [], None
    for load, arm, figures in measured.each():
        times = [arm.short]
        for found in (figures.time_to_first_token, figures.inter_token, figures.end_to_end):
            times += (duration(found.p50), duration(found.p99)) if found else (NOTHING, NOTHING)
        rows.append(("" if load == last else f"{load.value:g}", *times))
        last = load
    out.table(rows, (*measured.header, "first text", "p99", "a token", "p99", "an answer", "p99"))


def _gained(level: LoadResult) -> tuple[str, ...]:
    own, without = level.arms.speculative, level.arms.plain
    drafts = own.drafts.acceptance if own.drafts else None
    return (
        f"{level.load.value:g}",
        times(level.speedup),
        interval(level.speedup),
        _tokens(own),
        _tokens(without),
        percent(per_token(drafts) if drafts else None),
        plain(drafts.tokens_per_verification if drafts else None),
        str(own.failed + (without.failed if without else 0)),
    )


def _reused(levels: Sequence[LoadResult]) -> Iterator[tuple[str, str, str]]:
    """Yields the loads at which the server's metrics tell how much of the prompts it had."""
    for level in levels:
        plain = level.arms.plain.inside.kv_reuse if level.arms.plain else None
        own = level.arms.speculative.inside.kv_reuse
        if own is not None or plain is not None:
            yield f"{level.load.value:g}", percent(own), percent(plain)


def _tokens(figures: ArmFigures | None) -> str:
    return plain(figures.tokens_per_second.value if figures else None)
