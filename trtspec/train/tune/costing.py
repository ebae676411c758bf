"""Says what rounds cost: measured on this machine, or forecast for the recipe's GPUs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace

from trtspec.base.errors import UnavailableError
from trtspec.base.progress import Progress
from trtspec.forecast.roofline import BatchLoad, step
from trtspec.pipeline.plan.speed import pair_of, unforeseeable
from trtspec.serving.executors.torch.pair import load_engines
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.calibration import MOST, CostMeasurement
from trtspec.train.tune.candidate import Candidate
from trtspec.train.tune.kept import Kept
from trtspec.train.tune.score import DraftLengthCosts, of_lengths
from trtspec.train.tune.workshop import Workshop


class MeasuredCosts:
    """Measures the costs of a candidate's rounds here, once for each draft, and keeps them.

    `streams` sequences, taken from the `answers`, run at once.
    """

    def __init__(
        self,
        workshop: Workshop,
        kept: Kept,
        answers: Sequence[RecordedAnswer],
        streams: int,
        longest: int,
        watch: Progress,
    ) -> None:
        self._workshop, self._kept, self._watch = workshop, kept, watch
        self._streams, self._longest = streams, longest
        # The first halves of answers of medium length.
        by_length = sorted(answers, key=lambda answer: len(answer.prompt) + len(answer.tokens))
        first = max(0, (len(by_length) - streams) // 2)
        chosen = by_length[first : first + streams]
        self._texts = [[*answer.prompt, *answer.tokens[: len(answer.tokens) // 2]] for answer in chosen]
        self._last: DraftLengthCosts | None = None

    def __call__(self, candidate: Candidate) -> DraftLengthCosts:
        """Returns the costs; raises what building the draft raises."""
        if candidate.draft is None and self._last is not None:
            return replace(self._last, drafted=self._last.looked_up)
        target = self._workshop.target()
        built = [target, *([self._workshop.draft(candidate.draft)] if candidate.draft else [])]
        digests = [engine.digest for engine in built]
        what = (platform.node(), self._streams, self._longest, self._texts, digests)
        costs = self._kept.costs(*what)
        if costs is None:
            with self._watch(f"{candidate.name}: timing rounds here", MOST) as advance:
                engines = load_engines([one.engine for one in built])
                try:
                    tokenizer = Tokenizer.load(target.folder / "tokenizer")
                    proposing = engines[1] if candidate.draft else None
                    how = self._texts, self._streams, self._longest
                    costs = CostMeasurement(engines[0], proposing, tokenizer, *how).costs(advance)
                finally:
                    for engine in engines:
                        engine.shutdown()
            self._kept.keep_costs(costs, *what)
        self._last = costs
        return costs


class ForecastCosts:
    """Computes the costs of a candidate's rounds by the plan's model, for engines that do not run here.

    `streams` sequences of the length of `answers` run at once.
    """

    def __init__(
        self, workshop: Workshop, answers: Sequence[RecordedAnswer], streams: int, longest: int
    ) -> None:
        self._workshop, self._longest = workshop, longest
        tokens = sum(len(answer.prompt) + len(answer.tokens) // 2 for answer in answers)
        self._load = BatchLoad(streams, tokens // len(answers))

    def __call__(self, candidate: Candidate) -> DraftLengthCosts:
        """Returns the costs; raises UnavailableError for engines without a forecast."""
        resolved = self._workshop.plan(candidate).resolved
        if reason := unforeseeable(resolved):
            raise UnavailableError("--speed plan", reason, "measure here, with --speed measured")
        pair = pair_of(resolved, self._longest)
        free = replace(pair, draft=None)
        return DraftLengthCosts(
            of_lengths(lambda length: pair.costs(self._load, length), self._longest),
            of_lengths(lambda length: free.costs(self._load, length), self._longest),
            step(pair.target, pair.chip, self._load).seconds,
        )
