"""Runs one verification: greedy answers, samples, and the cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtspec.measure.verify.cases import Suite
from trtspec.measure.verify.distribution import PILOT, PROMPTS, SamplingCheck
from trtspec.measure.verify.greedy import CountAnswers, GreedyCheck
from trtspec.measure.verify.prompts import VerifyPrompt, Vocabulary
from trtspec.measure.verify.result import VerifyResult
from trtspec.measure.verify.sides import Sides, VerificationSettings

EVERY_UP_TO = 8
"""Each draft length up to this one is tried, since a fault may show at a single length."""


def num_requests(settings: VerificationSettings, prompts: int) -> int:
    """Returns how many requests the verification makes, without those for margins.

    A case counts as one for each side.
    """
    sampled = prompts * PILOT + 2 * min(prompts, PROMPTS) * settings.draws
    return prompts * (len(settings.ways) + 2) + 2 * len(settings.cases) + (sampled if settings.draws else 0)


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
    advance: CountAnswers,
    command: str = "",
) -> VerifyResult:
    """Returns the result of both checks, and of the cases.

    One side gets all its requests before the other, so that two servers can alternate on one machine. The
    plain side comes first, so that drafts leave no trace in the reference. Raises as `Side.ask` does, and
    `UnavailableError` if this machine lacks something.
    """
    check = GreedyCheck(sides, vocabulary, prompts, settings, advance)
    draws = SamplingCheck(sides, vocabulary, prompts, settings, advance) if settings.draws else None
    cases = Suite(sides, vocabulary, prompts, settings, advance)
    plain = await check.plain()
    alone = await draws.alone() if draws else []
    await cases.ask_plain()
    drafted = await check.drafted()
    sampling = await draws.drafted(alone) if draws else None
    # A case may end a server, which is asked for the margins if it is both sides.
    greedy = await check.judge(plain, drafted) if sides.plain is sides.speculative else None
    await cases.ask_drafted()
    greedy = greedy or await check.judge(plain, drafted)
    return replace(greedy, sampling=sampling, cases=await cases.judged(greedy.tolerance), command=command)
