"""Measures the costs of rounds on this machine, with real engines, for one draft length after another.

A round's time depends on the length of its draft and hardly on how much is accepted, so a few rounds of each
length are enough. All lengths are measured in blocks in rotation, so that other work of the machine affects
all equally. Of a length's times a short one counts, since other work only adds time. `trtspec.forecast.fit`
fits a line to the lengths.
"""

from __future__ import annotations

import asyncio
import math
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from trtspec.base.errors import UnavailableError
from trtspec.base.progress import Advance, Progress
from trtspec.forecast.fit import FittedSeconds, fit
from trtspec.forecast.roofline import BatchLoad, step
from trtspec.pipeline.plan.speed import pair_of, unforeseeable
from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.drafters.engine import EngineSource
from trtspec.serving.drafters.source import LOOKUP, Drafter, Offer
from trtspec.serving.errors import EngineFailure
from trtspec.serving.executor import Executor, Request
from trtspec.serving.executors.torch.torch_executor import load_engines
from trtspec.serving.intake import begin
from trtspec.serving.rounds import FixedLengths, Rounds
from trtspec.serving.stats import Stats
from trtspec.serving.text import Text
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.builds import TuneBuilds
from trtspec.train.tune.cache import TuneCache
from trtspec.train.tune.candidate import Candidate
from trtspec.train.tune.score import CONFIDENCE, DraftLengthCosts, line, of_lengths


class MeasuredCosts:
    """Measures the costs of a candidate's rounds here, once for each draft, and keeps them.

    `streams` sequences, taken from the `answers`, run at once.
    """

    def __init__(
        self,
        builds: TuneBuilds,
        cache: TuneCache,
        answers: Sequence[RecordedAnswer],
        streams: int,
        longest: int,
        watch: Progress,
    ) -> None:
        self._builds, self._cache, self._watch = builds, cache, watch
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
        target = self._builds.target()
        built = [target, *([self._builds.draft(candidate.draft)] if candidate.draft else [])]
        digests = [engine.digest for engine in built]
        what = (platform.node(), self._streams, self._longest, self._texts, digests)
        costs = self._cache.costs(*what)
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
            self._cache.put_costs(costs, *what)
        self._last = costs
        return costs


class ForecastCosts:
    """Computes the costs of a candidate's rounds by the plan's model, for engines that do not run here.

    `streams` sequences of the length of `answers` run at once.
    """

    def __init__(
        self, builds: TuneBuilds, answers: Sequence[RecordedAnswer], streams: int, longest: int
    ) -> None:
        self._builds, self._longest = builds, longest
        tokens = sum(len(answer.prompt) + len(answer.tokens) // 2 for answer in answers)
        self._load = BatchLoad(streams, tokens // len(answers))

    def __call__(self, candidate: Candidate) -> DraftLengthCosts:
        """Returns the costs; raises UnavailableError for engines without a forecast."""
        resolved = self._builds.plan(candidate).resolved
        if reason := unforeseeable(resolved):
            raise UnavailableError("--speed plan", reason, "measure here, with --speed measured")
        pair = pair_of(resolved, self._longest)
        free = replace(pair, draft=None)
        return DraftLengthCosts(
            of_lengths(lambda length: pair.costs(self._load, length), self._longest),
            of_lengths(lambda length: free.costs(self._load, length), self._longest),
            step(pair.target, pair.chip, self._load).seconds,
            error=pair.error / NormalDist().inv_cdf((1 + CONFIDENCE) / 2),
        )


LEAST, MOST, BUDGET_S = 3, 10, 5.0
"""The smallest and the largest number of blocks; more than the smallest only while there is time."""
SECONDS, FEWEST = 0.06, 4
"""The seconds of rounds of one length in a block, and the smallest number of outputs."""
ROUNDS = 8
"""Texts have room for this many fully accepted rounds of the longest draft."""
_SPARSE = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)

STREAMED = 8
"""This many outputs of the target alone are timed together."""
QUIET = 0.25
"""The quantile of a length's times that counts."""

Drafting = Callable[[Text], Drafter] | None
Way = tuple[Drafting, int]


def lengths_to_measure(longest: int) -> list[int]:
    """Returns the lengths to measure; the costs of others are interpolated."""
    return sorted({*(length for length in _SPARSE if length <= longest), longest})


class CostMeasurement:
    """Times the engines of a target and of its draft on texts, of which `streams` run at once."""

    def __init__(
        self,
        target: Executor,
        draft: Executor | None,
        tokenizer: Tokenizer,
        texts: Sequence[Sequence[int]],
        streams: int,
        longest: int,
    ) -> None:
        self._target, self._limits, self._tokenizer = AsyncExecutor(target), target.limits, tokenizer
        self._streams, self._longest, self._stats = streams, longest, Stats()
        limits = target.limits
        room = limits.max_draft_len + ROUNDS * (longest + 1)
        most = max(limits.max_seq_len - room, limits.max_seq_len // 2)
        self._texts = [text[:most] for text in texts]
        self._engine: Drafting = None
        if draft is not None:
            self._engine = EngineSource(draft, limits.vocab_size, math.inf, self._stats).drafter

    def costs(self, advance: Advance) -> DraftLengthCosts:
        """Returns the costs of rounds with drafts of the engine, if there is one, and of the text itself."""
        return asyncio.run(self._costs(advance))

    async def _costs(self, advance: Advance) -> DraftLengthCosts:
        longest, clock = self._longest, asyncio.get_running_loop().time
        ways: list[Way] = [(None, 0)]
        ways += [(_Guessing, length) for length in sorted({1, (longest + 1) // 2, longest})]
        if self._engine is not None:
            ways += [(self._engine, length) for length in lengths_to_measure(longest)]
        blocks: list[dict[Way, list[float]]] = []
        await self._times(*ways[-1])
        until = clock() + BUDGET_S
        while len(blocks) < MOST and (len(blocks) < LEAST or clock() < until):
            order = ways[:: 1 if len(blocks) % 2 else -1]
            blocks.append({way: await self._times(*way) for way in order})
            advance(1)
        if not self._stats.draft_available:
            raise EngineFailure("the draft failed during the measurement")
        logs = [math.log(self._fitted([block]).drafted[longest // 2]) for block in blocks]
        return replace(self._fitted(blocks), error=spread(logs) / math.sqrt(len(blocks)))

    def _fitted(self, blocks: Sequence[Mapping[Way, list[float]]]) -> DraftLengthCosts:
        """Returns the line through a low quantile of each length's times, since other work only adds time."""
        quiet = {
            way: float(np.quantile([t for block in blocks for t in block[way]], QUIET)) for way in blocks[0]
        }
        plain_s = quiet.pop((None, 0))
        looked_up = {length: time for (drafting, length), time in quiet.items() if drafting is _Guessing}
        drafted = {length: time for (drafting, length), time in quiet.items() if drafting is not _Guessing}
        free = fit(FittedSeconds(plain_s, looked_up))
        engine = fit(FittedSeconds(plain_s, drafted)) if drafted else free
        return DraftLengthCosts(line(engine, self._longest), line(free, self._longest), plain_s)

    async def _times(self, drafting: Drafting, length: int) -> list[float]:
        """Returns the seconds between the outputs of a text, while all streams are running."""
        streams, limits, clock = self._streams, self._limits, asyncio.get_running_loop().time
        times: list[list[float]] = [[] for _ in range(streams)]
        until = clock() + SECONDS

        async def one(index: int) -> None:
            prompt = self._texts[index % len(self._texts)]
            request = CompletionRequest(
                prompt_token_ids=prompt, max_tokens=limits.max_seq_len, num_draft_tokens=length, end_id=NO_END
            )
            state = begin(request, limits, self._tokenizer)
            drafter = drafting(state.text) if drafting else None
            rounds = Rounds(state, self._target, drafter, FixedLengths({}), self._stats)
            async with aclosing(rounds.run(math.inf)) as deltas:
                async for _ in deltas:
                    times[index].append(clock())
                    if clock() >= until and all(len(own) > FEWEST for own in times):
                        break

        await asyncio.gather(*(one(index) for index in range(streams)))
        start, end = max(own[0] for own in times), min(own[-1] for own in times)
        # Two outputs may arrive together.
        stride = STREAMED if not length and min(map(len, times)) > 2 * STREAMED else 1
        return [
            (after - before) / stride
            for own in times
            for before, after in pairwise(own[::stride])
            if start <= before and after <= end
        ]


def spread(values: Sequence[float]) -> float:
    """Returns a robust standard deviation of normal values with a few outliers, from their median."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


class _Guessing:
    """Proposes the last token repeatedly: it costs as much as a look-up, and the tokens do not matter."""

    pause = 1
    silence = "nothing_found"

    def __init__(self, text: Text) -> None:
        self._text = text

    def offer(self) -> Offer:
        return Offer(LOOKUP, len(self._text))

    async def propose(self, request: Request, deadline: float) -> list[int]:
        return [self._text[-1]] * request.max_tokens

    def end(self) -> None:
        """Keeps nothing."""
