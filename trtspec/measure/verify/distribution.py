"""Checks sampling: compares many short continuations with drafts with as many of the target alone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from trtspec.base.extras import require
from trtspec.measure.verify.greedy import CountAnswers
from trtspec.measure.verify.prompts import VerifyPrompt, Vocabulary
from trtspec.measure.verify.result import DistributionTest, Draws, Sampling
from trtspec.measure.verify.sides import END, Side, Sides, VerificationSettings, VerifyRequest
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
LEAST, MOST_OUTCOMES = 20, 25
LARGEST_SHIFT = 1e6


class SamplingCheck:
    """Draws from both sides and tests whether the counts can come from one distribution.

    Draft lengths are used in rotation. Each draw has a seed of its own, never the same on both sides: with
    equal seeds an engine repeats its text, which proves nothing about the distribution.
    """

    def __init__(
        self,
        sides: Sides,
        vocabulary: Vocabulary,
        prompts: Sequence[VerifyPrompt],
        settings: VerificationSettings,
        advance: CountAnswers,
    ) -> None:
        self._sides, self._vocabulary, self._prompts = sides, vocabulary, prompts
        self._settings, self._advance = settings, advance
        self._seeds = random.Random(settings.seed)  # noqa: S311

    async def alone(self) -> Alone:
        """Draws from the target alone, for the prompts with the most varied answers."""
        side, lengths, varied = self._sides.plain, [self._sides.plain_k], []
        for prompt in self._prompts:
            varied.append(len(outcomes([await self._draw(side, prompt, lengths, PILOT)], 3)))
        best = sorted(range(len(varied)), key=lambda index: (-varied[index], index))[:PROMPTS]
        chosen = [self._prompts[index] for index in sorted(best)]
        return [(each, await self._draw(side, each, lengths, self._settings.draws)) for each in chosen]

    async def drafted(self, alone: Alone) -> Sampling:
        """Draws for the same prompts with drafts, and returns the test of both."""
        asked, side = self._settings, self._sides.speculative
        drawn = [
            (prompt.name, said, await self._draw(side, prompt, asked.lengths, asked.draws))
            for prompt, said in alone
        ]
        limit = FALSE_ALARMS / (2 * (len(drawn) + 1))
        views = self._view("text", drawn, limit), self._view("repeats", drawn, limit)
        return Sampling(asked.temperature, asked.draws, TOKENS, limit, POWER, views)

    def _view(self, of: Literal["text", "repeats"], drawn: Sequence[Drawn], limit: float) -> DistributionTest:
        seen = (lambda said: said) if of == "text" else repeats
        # An outcome must occur this often to count by itself.
        least = max(LEAST, 2 * self._settings.draws // MOST_OUTCOMES)
        tests, freedoms = [], []
        for name, alone, drafted in drawn:
            table = outcomes([list(map(seen, alone)), list(map(seen, drafted))], least)
            counts = list(table.values())
            freedoms.append(len(counts) - 1)
            far, said = statistic(counts), _worst(table, self._text if of == "text" else str)
            tests.append(Draws(name, len(counts), far, p_value(far, freedoms[-1]), distance(counts), said))
        size = self._settings.draws / 2
        return DistributionTest(
            of,
            tuple(tests),
            p_value(sum(test.statistic for test in tests), sum(freedoms)),
            detectable(sum(freedoms), size * sum(map(bool, freedoms)), limit, POWER),
            max((detectable(freedom, size, limit, POWER) for freedom in freedoms if freedom), default=1.0),
        )

    async def _draw(
        self, side: Side, prompt: VerifyPrompt, lengths: Sequence[int | None], count: int
    ) -> list[Continuation]:
        gate = asyncio.Semaphore(self._settings.concurrency)

        async def one(length: int | None, seed: int) -> Continuation:
            async with gate:
                sampling = SamplingConfig(temperature=self._settings.temperature, seed=seed)
                answer = await side.ask(VerifyRequest(prompt.text, TOKENS, length, sampling))
                self._advance(1)
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


def distributions() -> Any:
    """Returns `scipy.stats`; raises `UnavailableError` where it is not installed."""
    require("the test of sampling, which --draws 0 leaves out,", "scipy")
    import scipy.stats

    return scipy.stats


def statistic(table: Sequence[Sequence[int]]) -> float:
    """Returns Pearson's chi-square of a table with two counts for each outcome.

    Its degrees of freedom are the number of outcomes minus one.
    """
    return float(distributions().chi2_contingency(table, correction=False).statistic)


def distance(table: Sequence[Sequence[int]]) -> float:
    """Returns the total variation between the two samples: half the sum of the differences of shares."""
    one, other = (sum(column) for column in zip(*table, strict=True))
    return float(sum(abs(row[0] / one - row[1] / other) for row in table) / 2)


def p_value(chi_square: float, freedom: int) -> float:
    """Returns the probability of a statistic at least this large if both samples have one distribution."""
    return float(distributions().chi2.sf(chi_square, freedom)) if freedom else 1.0


def detectable(freedom: int, size: float, limit: float, power: float) -> float:
    """Returns the total variation that the test finds with probability `power`, for any shape.

    `size` is n m / (n + m) for samples of n and m, summed over tests that are added up. The statistic of
    distributions p and q is noncentral chi-square with `size` times the sum of (p - q)^2 over their mean,
    which is at least `size` (2 TV)^2 by Cauchy's and Schwarz's inequality, since the mean sums to one. So a
    difference of any shape that has this total variation between the outcomes is found at least as often. It
    is 1 if not even distributions without a common outcome would be found.
    """
    stats = distributions()
    if not freedom:
        return 1.0
    bound = stats.chi2.isf(limit, freedom)
    # Bisection finds the shift: a larger shift is found more often.
    low, high = 0.0, LARGEST_SHIFT
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        is_found = stats.ncx2.sf(bound, freedom, middle) >= power
        low, high = (low, middle) if is_found else (middle, high)
    return float(min((high / (4 * size)) ** 0.5, 1.0))
