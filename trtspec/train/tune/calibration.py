"""Measures on this machine what rounds cost: real rounds of real engines, one way to draft after another.

What a round takes depends on the length of its draft and hardly on how much of it is accepted, so that a few
rounds of each length tell. All lengths are measured in blocks, one after the other, so that what else the
machine does meets all alike; of all times of a length a short one counts, since others only ever add to it.
`trtspec.forecast.fit` makes a line of the lengths.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from trtspec.base.progress import Advance
from trtspec.forecast.fit import FittedSeconds, fit
from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.drafters.engine import EngineSource
from trtspec.serving.drafters.source import LOOKUP, Drafter, Offer
from trtspec.serving.errors import EngineFailure
from trtspec.serving.executor import Executor, Request
from trtspec.serving.intake import begin
from trtspec.serving.pace import FixedPace
from trtspec.serving.rounds import Rounds
from trtspec.serving.stats import Stats
from trtspec.serving.text import Text
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.tune.costs import DraftLengthCosts, line

LEAST, MOST, BUDGET_S = 3, 10, 5.0
"""How many blocks there are; more than the least only as long as there is time."""
SECONDS, FEWEST = 0.06, 4
"""How long rounds of one length go on in a block, and how many outputs there are at least."""
ROUNDS = 8
"""How many rounds of the longest draft, all of it accepted, texts have room for."""
_SPARSE = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)

STREAMED = 8
"""How many outputs of the target alone are timed together."""
QUIET = 0.25
"""Which share of the times of one length is shorter than the one that counts."""

Drafting = Callable[[Text], Drafter] | None
Way = tuple[Drafting, int]


@dataclass(frozen=True, slots=True)
class Bench:
    """The engines to time, and the texts that they run."""

    target: Executor
    draft: Executor | None
    tokenizer: Tokenizer
    texts: Sequence[Sequence[int]]
    streams: int
    """The number of sequences that run at once."""

    def costs(self, longest: int, advance: Advance) -> DraftLengthCosts:
        """Returns the costs of rounds with drafts of the engine, if there is one, and of the text itself."""
        return asyncio.run(_Measurement(self, longest).costs(advance))


def lengths_to_measure(longest: int) -> list[int]:
    """Returns the lengths that are measured; those between them cost in between."""
    return sorted({*(length for length in _SPARSE if length <= longest), longest})


class _Measurement:
    def __init__(self, bench: Bench, longest: int) -> None:
        self._bench, self._longest, self._stats = bench, longest, Stats()
        limits = bench.target.limits
        room = limits.max_draft_len + ROUNDS * (longest + 1)
        most = max(limits.max_seq_len - room, limits.max_seq_len // 2)
        self._texts = [text[:most] for text in bench.texts]
        self._target = AsyncExecutor(bench.target)
        self._engine: Drafting = None
        if bench.draft is not None:
            size = bench.target.limits.vocab_size
            self._engine = EngineSource(bench.draft, size, math.inf, self._stats).drafter

    async def costs(self, advance: Advance) -> DraftLengthCosts:
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
            raise EngineFailure("the draft failed while it was measured")
        logs = [math.log(self._fitted([block]).drafted[longest // 2]) for block in blocks]
        return replace(self._fitted(blocks), error=spread(logs) / math.sqrt(len(blocks)))

    def _fitted(self, blocks: Sequence[Mapping[Way, list[float]]]) -> DraftLengthCosts:
        """Returns the line through the times of each length; a quiet one of many, since others only add."""
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
        """Returns the seconds between the outputs of a text, while as many go on as there are streams."""
        bench, clock = self._bench, asyncio.get_running_loop().time
        times: list[list[float]] = [[] for _ in range(bench.streams)]
        until = clock() + SECONDS

        async def one(index: int) -> None:
            prompt = self._texts[index % len(self._texts)]
            request = CompletionRequest(
                prompt_token_ids=prompt,
                max_tokens=bench.target.limits.max_seq_len,
                num_draft_tokens=length,
                end_id=NO_END,
            )
            state = begin(request, bench.target.limits, bench.tokenizer)
            drafter = drafting(state.text) if drafting else None
            rounds = Rounds(state, self._target, drafter, FixedPace(), self._stats, lambda: bench.streams)
            async with aclosing(rounds.run(math.inf)) as deltas:
                async for _ in deltas:
                    times[index].append(clock())
                    if clock() >= until and all(len(own) > FEWEST for own in times):
                        break

        await asyncio.gather(*(one(index) for index in range(bench.streams)))
        start, end = max(own[0] for own in times), min(own[-1] for own in times)
        # What is streamed may come two at a time.
        stride = STREAMED if not length and min(map(len, times)) > 2 * STREAMED else 1
        return [
            (after - before) / stride
            for own in times
            for before, after in pairwise(own[::stride])
            if start <= before and after <= end
        ]


def spread(values: Sequence[float]) -> float:
    """Returns the standard deviation of normal values, of which a few may be anything: from their median."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


class _Guessing:
    """Proposes the last token again and again: a lookup costs no more, and what it says does not matter."""

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
