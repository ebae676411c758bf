"""Measures the costs of rounds on this machine, once for each draft, and keeps them."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace

from trtspec.base.progress import Progress
from trtspec.serving.executors.torch.pair import load_engines
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.calibration import MOST, Bench
from trtspec.train.tune.candidate import Candidate
from trtspec.train.tune.costs import DraftLengthCosts
from trtspec.train.tune.kept import Kept
from trtspec.train.tune.workshop import Workshop


class MeasuredCosts:
    """Measures the costs of a candidate's rounds with `streams` sequences at once, taken from the
    `answers`."""

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
        self._texts = middling(answers, streams)
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
                    bench = Bench(engines[0], proposing, tokenizer, self._texts, self._streams)
                    costs = bench.costs(self._longest, advance)
                finally:
                    for engine in engines:
                        engine.shutdown()
            self._kept.keep_costs(costs, *what)
        self._last = costs
        return costs


def middling(answers: Sequence[RecordedAnswer], count: int) -> list[list[int]]:
    """Returns the first halves of up to `count` answers of medium length."""
    by_length = sorted(answers, key=lambda answer: len(answer.prompt) + len(answer.tokens))
    first = max(0, (len(by_length) - count) // 2)
    return [
        [*answer.prompt, *answer.tokens[: len(answer.tokens) // 2]]
        for answer in by_length[first : first + count]
    ]
