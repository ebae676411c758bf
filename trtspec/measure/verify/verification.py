"""Runs one verification: both checks, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.measure.verify.distribution import DrawPlan, SamplingCheck, requests
from trtspec.measure.verify.greedy import GreedyCheck, Told, Way
from trtspec.measure.verify.prompts import VerifyPrompt, Vocabulary
from trtspec.measure.verify.result import VerifyResult
from trtspec.measure.verify.second_opinion import SecondOpinion
from trtspec.measure.verify.subject import PLAIN, Sides
from trtspec.measure.verify.tolerance import of_two_engines

EVERY_UP_TO = 8
"""Each draft length up to this one is tried, since a fault may show at a single length."""


@dataclass(frozen=True, slots=True)
class VerificationSettings:
    """The options of a verification."""

    lengths: tuple[int | None, ...]
    """The Ks to try; None leaves K to the deployment."""
    max_tokens: int = 64
    concurrency: int = 8
    """The number of requests at once."""
    dtype: str | None = None
    """The type of the target's numbers; None if unknown."""
    near_tie: float | None = None
    """The bound in nats; None derives it from the type and the noise."""
    draws: int = 500
    """0 leaves the sampling check out."""
    temperature: float = 1.0
    seed: int = 0

    @property
    def ways(self) -> list[Way]:
        """Every length with many requests at once, and the first length also one by one."""
        return [*(Way(length, self.concurrency) for length in self.lengths), Way(self.lengths[0], 1)]

    @property
    def plan(self) -> DrawPlan:
        return DrawPlan(self.draws, self.temperature, self.lengths, self.concurrency, self.seed)

    def requests(self, prompts: int) -> int:
        """Returns how many requests the verification makes, without those for margins."""
        greedy = prompts * (len(self.ways) + 2)
        return greedy + (requests(self.plan, prompts) if self.draws else 0)


def usual_lengths(longest: int | None) -> tuple[int | None, ...]:
    """Returns the default draft lengths."""
    if longest is None:
        return (None,)
    return (None, *range(1, min(longest, EVERY_UP_TO) + 1), *((longest,) if longest > EVERY_UP_TO else ()))


async def verify(
    sides: Sides,
    vocabulary: Vocabulary,
    prompts: Sequence[VerifyPrompt],
    settings: VerificationSettings,
    told: Told,
    opinion: SecondOpinion | None = None,
    command: str = "",
) -> VerifyResult:
    """Returns the result of both checks, and of the second opinion.

    One side gets all its requests before the other, so that two servers can alternate on one machine. The
    plain side comes first, so that drafts leave no trace in the reference. Raises as `Subject.ask` does, and
    `UnavailableError` if this machine lacks something.
    """
    check = GreedyCheck(sides, vocabulary, prompts, settings.max_tokens, told)
    draws = SamplingCheck(sides, vocabulary, prompts, settings.plan, told) if settings.draws else None
    plain = await check.plain(settings.concurrency)
    alone = await draws.alone() if draws else []
    drafted = await check.drafted(settings.ways)
    sampling = await draws.drafted(alone) if draws else None
    greedy = await check.judge(plain, settings.ways, drafted, settings.dtype, settings.near_tie)
    other = None
    if opinion is not None:
        name, answers = await opinion.ask(prompts, settings.max_tokens)
        way, bound = Way(PLAIN, len(prompts)), of_two_engines(greedy.tolerance)
        other = await check.compare(greedy.answers, answers, way, bound, by=name)
    return VerifyResult(
        plain=sides.plain.name,
        speculative=sides.speculative.name,
        tolerance=greedy.tolerance,
        noise=greedy.noise,
        comparisons=greedy.comparisons,
        prompts=greedy.prompts,
        sampling=sampling,
        second_opinion=other,
        command=command,
    )
