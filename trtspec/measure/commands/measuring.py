"""Shows the progress of a bench, on a terminal or in plain lines."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from trtspec.base.progress import Advance
from trtspec.cli.terminal.output import out
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import BenchResult, OfferedLoad
from trtspec.measure.bench.sample import ArmName, RequestSample
from trtspec.measure.bench.summary import Circumstances
from trtspec.measure.commands.results import times


class Measuring:
    """Shows the servers found, and for each load the number of answered prompts and the result so far."""

    def __init__(self) -> None:
        self._shown = ExitStack()
        self._advance: Advance | None = None
        self._label, self._prompts, self._failed, self._said = "", 0, 0, ""

    def __enter__(self) -> Measuring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.__exit__(kind, error, trace)

    def __call__(self, of: Circumstances, plan: BenchPlan) -> Measuring:
        """Called with the servers found, before anything is measured."""
        server = of.server
        how = {
            "request": "alternating with the same server without drafts",
            "baseline": f"alternating with {server.baseline_url}",
            "none": "without a baseline",
        }[server.plain_by]
        out.status(f"{of.model.name} of {server.software or server.api} at {server.url}, {how}")
        prompts = f"{len(plan.workload.prompts)} prompts"
        categories = len([name for name in plan.workload.categories if name])
        if categories > 1:
            prompts += f" in {categories} categories"
        out.status(f"{plan.workload.source}: {prompts}, {plan.num_blocks} blocks")
        return self

    def began(self, load: OfferedLoad, prompts: int) -> None:
        self._shown.close()
        self._label, self._prompts, self._failed, self._said = str(load), prompts, 0, "warming up"
        self._advance = self._shown.enter_context(out.progress(self._label, prompts))
        self._advance(0, self._said)

    def warm(self) -> None:
        self._said = "measuring"
        self._tell(0)

    def heard(self, arm: ArmName, sample: RequestSample) -> None:
        self._failed += sample.error is not None
        self._tell(1 if sample.turn == 0 else 0)

    def paired(self, result: BenchResult) -> None:
        if result.levels and (speedup := result.levels[-1].speedup):
            self._said = times(speedup)
            self._tell(0)

    def _tell(self, amount: int) -> None:
        if self._advance:
            failed = f", {self._failed} failed" if self._failed else ""
            self._advance(amount, self._said + failed)
