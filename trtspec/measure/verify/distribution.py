"""Checks sampling: compares many short continuations with drafts with as many of the target alone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from trtspec.measure.verify.greedy import Told
from trtspec.measure.verify.prompts import VerifyPrompt, Vocabulary
from trtspec.measure.verify.result import DistributionTest, Draws, Sampling
from trtspec.measure.verify.subject import END, Sides, Subject, SubjectRequest
from trtspec.measure.verify.two_samples import detectable, distance, p_value, statistic
from trtspec.serving.executor import SamplingConfig

TOKENS = 6
"""Tokens of a continuation. They take two or more rounds at most draft lengths, so that errors between rounds
show."""
PROMPTS = 4
PILOT = 32
"""Continuations of each prompt for finding the prompts with the most varied answers."""
FALSE_ALARMS = 0.001
"""The probability that a lossless deployment fails, for all tests together."""
POWER = 0.95
Continuation = tuple[int, ...]
Alone = list[tuple[VerifyPrompt, list[Continuation]]]
"""Takes prompts, and returns the target's continuations of each."""
Drawn = tuple[str, list[Continuation], list[Continuation]]
"""The name of a prompt, and its continuations without and with drafts."""
LEAST = 20
MOST_OUTCOMES = 25


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """The plan of the draws."""

    draws: int
    """The number of draws of each prompt, on either side."""
    temperature: float
    lengths: Sequence[int | None]
    """The draft lengths, used in rotation; None leaves the length to the deployment."""
    concurrency: int
    """The number of requests at once."""
    seed: int

    @property
    def least(self) -> int:
        """The number of times that an outcome must occur to count by itself."""
        return max(LEAST, 2 * self.draws // MOST_OUTCOMES)


def requests(plan: DrawPlan, prompts: int) -> int:
    """Returns how many requests the check makes."""
    return prompts * PILOT + 2 * min(prompts, PROMPTS) * plan.draws


class SamplingCheck:
    """Draws from both sides and tests whether the counts can come from one distribution.

    Each draw has a seed of its own, never the same on both sides: with equal seeds an engine repeats its
    text, which proves nothing about the distribution.
    """

    def __init__(
        self,
        sides: Sides,
        vocabulary: Vocabulary,
        prompts: Sequence[VerifyPrompt],
        plan: DrawPlan,
        told: Told,
    ) -> None:
        self._sides, self._vocabulary, self._prompts = sides, vocabulary, prompts
        self._plan, self._told = plan, told
        self._seeds = random.Random(plan.seed)  # noqa: S311

    async def alone(self) -> Alone:
        """Draws from the target alone, for the prompts with the most varied answers."""
        plan, sides, chosen = self._plan, self._sides, await self._open_prompts()
        return [
            (prompt, await self._draw(sides.plain, prompt, [sides.plain_k], plan.draws)) for prompt in chosen
        ]

    async def drafted(self, alone: Alone) -> Sampling:
        """Draws for the same prompts with drafts, and returns the test of both."""
        plan, side = self._plan, self._sides.speculative
        drawn = [
            (prompt.name, said, await self._draw(side, prompt, plan.lengths, plan.draws))
            for prompt, said in alone
        ]
        limit = FALSE_ALARMS / (2 * (len(drawn) + 1))
        views = self._view("text", drawn, limit), self._view("repeats", drawn, limit)
        return Sampling(plan.temperature, plan.draws, TOKENS, limit, POWER, views)

    def _view(self, of: Literal["text", "repeats"], drawn: Sequence[Drawn], limit: float) -> DistributionTest:
        seen = (lambda said: said) if of == "text" else repeats
        tests, freedoms = [], []
        for name, alone, drafted in drawn:
            table = outcomes([list(map(seen, alone)), list(map(seen, drafted))], self._plan.least)
            counts = list(table.values())
            freedoms.append(len(counts) - 1)
            far = statistic(counts)
            worst = self._text if of == "text" else str
            said = _worst(table, worst)
            tests.append(Draws(name, len(counts), far, p_value(far, freedoms[-1]), distance(counts), said))
        size = self._plan.draws / 2
        return DistributionTest(
            of,
            tuple(tests),
            p_value(sum(test.statistic for test in tests), sum(freedoms)),
            detectable(sum(freedoms), size * sum(map(bool, freedoms)), limit, POWER),
            max((detectable(freedom, size, limit, POWER) for freedom in freedoms if freedom), default=1.0),
        )

    async def _open_prompts(self) -> list[VerifyPrompt]:
        """Returns the prompts with the most varied answers, by a few draws of each."""
        told = []
        for prompt in self._prompts:
            drawn = await self._draw(self._sides.plain, prompt, [self._sides.plain_k], PILOT)
            told.append(len(outcomes([drawn], 3)))
        best = sorted(range(len(told)), key=lambda index: (-told[index], index))[:PROMPTS]
        return [self._prompts[index] for index in sorted(best)]

    async def _draw(
        self, subject: Subject, prompt: VerifyPrompt, lengths: Sequence[int | None], count: int
    ) -> list[Continuation]:
        gate = asyncio.Semaphore(self._plan.concurrency)

        async def one(length: int | None, seed: int) -> Continuation:
            async with gate:
                sampling = SamplingConfig(temperature=self._plan.temperature, seed=seed)
                answer = await subject.ask(SubjectRequest(prompt.text, TOKENS, length, sampling))
                self._told(1)
                return answer.token_ids

        # Every API takes a seed of 63 bits.
        wanted = [(lengths[i % len(lengths)], self._seeds.getrandbits(63)) for i in range(count)]
        return list(await asyncio.gather(*(one(length, seed) for length, seed in wanted)))

    def _text(self, said: Continuation) -> str:
        text = self._vocabulary.text([token for token in said if token != END])
        return repr(text) + ", the end" * (END in said)


def repeats(said: Continuation) -> Continuation:
    """Returns which tokens of a continuation are the same: each token as the number of its first
    appearance."""
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(token, len(numbers)) for token in said)


def outcomes(samples: Sequence[Sequence[Continuation]], least: int) -> dict[Continuation, list[int]]:
    """Returns how often each outcome occurred in each sample; outcomes are prefixes of continuations.

    An outcome is a prefix that occurred at least `least` times in all samples together. A continuation counts
    for its longest outcome, so rare ones are pooled with those of the same prefix. The empty prefix has all
    that share no common prefix. All samples together decide on the outcomes, so the choice favours no
    difference.
    """
    together = [continuation for sample in samples for continuation in sample]
    seen = Counter(said[:length] for said in together for length in range(1, len(said) + 1))
    common = {beginning for beginning, count in seen.items() if count >= least}

    def outcome(said: Continuation) -> Continuation:
        return next((said[:n] for n in range(len(said), 0, -1) if said[:n] in common), ())

    counts = [Counter(map(outcome, sample)) for sample in samples]
    table = {each: [count[each] for count in counts] for each in set().union(*counts)}
    # Without its common continuations a prefix may be rare itself.
    for length in range(max(map(len, table)), 0, -1):
        for each in [outcome for outcome in table if len(outcome) == length and sum(table[outcome]) < least]:
            parent = table.setdefault(each[:-1], [0] * len(samples))
            table[each[:-1]] = [a + b for a, b in zip(parent, table.pop(each), strict=True)]
    if sum(table.get((), [least])) < least and len(table) > 1:
        rest = table.pop(())
        rarest = min(table, key=lambda beginning: (sum(table[beginning]), beginning))
        table[rarest] = [a + b for a, b in zip(table[rarest], rest, strict=True)]
    return table


def _worst(table: dict[Continuation, list[int]], name: Callable[[Continuation], str]) -> str:
    """Returns in words the outcome whose counts differ most."""
    said = max(table, key=lambda outcome: abs(table[outcome][0] - table[outcome][1]))
    alone, drafted = table[said]
    return f"{name(said) if said else 'anything else'}: {alone} times alone, {drafted} with drafts"
