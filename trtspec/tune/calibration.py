"""Measures on this machine what rounds cost: real rounds of real engines, one way to draft after another.

What a round takes depends on the length of its draft and hardly on how much of it is accepted, so that a few
rounds of each length tell. All lengths are measured in blocks, one after the other, and each time counts in
plain steps of its own block: what else the machine does meets all alike. `trtspec.forecast.fit` makes a line
of the lengths.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from trtspec.forecast.fit import Calibration, fit
from trtspec.progress import Advance
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
from trtspec.tune.costs import Costs, line

LEAST, MOST, BUDGET_S = 3, 10, 10.0
"""How many blocks there are; more than the least only as long as there is time."""
SECONDS, FEWEST = 0.06, 4
"""How long rounds of one length go on in a block, and how many outputs there are at least."""
_SPARSE = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)

Drafting = Callable[[Text], Drafter] | None


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured: engines, and texts of `streams` completions that go on at once."""

    target: Executor
    draft: Executor | None
    tokenizer: Tokenizer
    texts: Sequence[Sequence[int]]
    streams: int

    def costs(self, longest: int, advance: Advance) -> Costs:
        """Returns the costs of rounds with drafts of the engine, if there is one, and of the text itself."""
        return asyncio.run(_Measurement(self, longest).costs(advance))


def lengths_to_measure(longest: int) -> list[int]:
    """Returns the lengths that are measured; those between them cost in between."""
    return sorted({*(length for length in _SPARSE if length <= longest), longest})


class _Measurement:
    def __init__(self, bench: Bench, longest: int) -> None:
        self._bench, self._longest, self._stats = bench, longest, Stats()
        self._target = AsyncExecutor(bench.target)
        self._engine: Drafting = None
        if bench.draft is not None:
            size = bench.target.limits.vocab_size
            self._engine = EngineSource(bench.draft, size, math.inf, self._stats).drafter

    async def costs(self, advance: Advance) -> Costs:
        longest, clock = self._longest, asyncio.get_running_loop().time
        ways: list[tuple[Drafting, int]] = [
            (_Guessing, length) for length in sorted({1, (longest + 1) // 2, longest})
        ]
        if self._engine is not None:
            ways += [(self._engine, length) for length in lengths_to_measure(longest)]
        blocks: list[Costs] = []
        await self._period(None, 0)
        until = clock() + BUDGET_S
        while len(blocks) < MOST and (len(blocks) < LEAST or clock() < until):
            before = await self._period(None, 0)
            order = ways[:: 1 if len(blocks) % 2 else -1]
            periods = {way: await self._period(*way) for way in order}
            plain = math.sqrt(before * await self._period(None, 0))
            blocks.append(self._fitted(periods, plain))
            advance(1)
        if not self._stats.draft_available:
            raise EngineFailure("the draft failed while it was measured")
        return _together(blocks)

    def _fitted(self, periods: Mapping[tuple[Drafting, int], float], plain_s: float) -> Costs:
        looked_up = {
            length: period for (drafting, length), period in periods.items() if drafting is _Guessing
        }
        drafted = {
            length: period for (drafting, length), period in periods.items() if drafting is self._engine
        }
        free = fit(Calibration(plain_s, looked_up))
        engine = fit(Calibration(plain_s, drafted)) if drafted else free
        return Costs(line(engine, self._longest), line(free, self._longest), plain_s)

    async def _period(self, drafting: Drafting, length: int) -> float:
        """Returns the seconds between two outputs of a text, while as many go on as there are streams."""
        bench, clock = self._bench, asyncio.get_running_loop().time
        times: list[list[float]] = [[] for _ in range(bench.streams)]
        until = clock() + SECONDS

        async def one(index: int) -> None:
            prompt = bench.texts[index % len(bench.texts)]
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
        outputs = sum(start < time <= end for own in times for time in own)
        return bench.streams * (end - start) / outputs


def _together(blocks: Sequence[Costs]) -> Costs:
    """Returns the medians of what blocks say, and how sure they are of a draft of middling length."""
    middle = len(blocks[0].drafted) // 2
    logs = [math.log(costs.drafted[middle]) for costs in blocks]
    return Costs(
        tuple(map(statistics.median, zip(*(costs.drafted for costs in blocks), strict=True))),
        tuple(map(statistics.median, zip(*(costs.looked_up for costs in blocks), strict=True))),
        statistics.median(costs.plain_s for costs in blocks),
        error=statistics.stdev(logs) / math.sqrt(len(blocks)),
    )


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
