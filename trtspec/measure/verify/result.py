"""Holds the result of a verification as plain numbers and words, and its verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from trtspec.measure.verify.tolerance import Tolerance

Kind = Literal["near tie", "fault"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where two answers part, or their numbers do.

    `what` is "tokens", "text", "numbers" or "prompt". `position` is that of the token in the answer, from 0.
    `expected` is what plain decoding said, `found` the other, both for a person. `margin` is by how many nats
    the target prefers its likeliest token to the less likely of both, or how far the numbers are apart;
    `is_at_least` where it may be larger. `context` is the text before.
    """

    prompt: str
    what: str
    kind: Kind
    position: int
    context: str
    expected: str
    found: str
    meaning: str
    margin: float | None = None
    is_at_least: bool = False


@dataclass(frozen=True, slots=True)
class GreedyComparison:
    """All prompts answered in one way, against plain decoding of one prompt at a time.

    `num_draft_tokens` is K, 0 for plain decoding and None for what the deployment does by itself;
    `concurrency` says how many were asked at once. `moved` is the largest move of the numbers, in nats, None
    where there are none. `drafted` and `accepted` are None where the server does not count.
    """

    num_draft_tokens: int | None
    concurrency: int
    texts: int
    tokens: int
    differences: tuple[Difference, ...]
    moved: float | None
    drafted: int | None = None
    accepted: int | None = None
    by: str = ""

    @property
    def faults(self) -> list[Difference]:
        return [difference for difference in self.differences if difference.kind == "fault"]

    @property
    def near_ties(self) -> list[Difference]:
        return [difference for difference in self.differences if difference.kind == "near tie"]


@dataclass(frozen=True, slots=True)
class Draws:
    """The continuations of one prompt, with drafts and without, counted by outcome.

    `p_value` is the chance of counts at least as different where both come from one distribution, and
    `distance` the total variation between the counts.
    """

    prompt: str
    outcomes: int
    statistic: float
    p_value: float
    distance: float
    most_different: str


@dataclass(frozen=True, slots=True)
class DistributionTest:
    """One way to tell continuations apart, and the test of it.

    `of` is "text", how they begin, or "repeats", which of their tokens are the same: random numbers that are
    used twice repeat tokens, whatever they are. `p_value` is that of all prompts together. With the power of
    the test a total variation of `found_everywhere` between the outcomes of every prompt that has several
    would have been found, or of `found_in_one` in one of them.
    """

    of: Literal["text", "repeats"]
    prompts: tuple[Draws, ...]
    p_value: float
    found_everywhere: float
    found_in_one: float

    @property
    def tells(self) -> bool:
        """True if any prompt has outcomes that could differ."""
        return any(draws.outcomes > 1 for draws in self.prompts)

    @property
    def least(self) -> float:
        """The smallest p-value."""
        return min(self.p_value, *(draws.p_value for draws in self.prompts))


@dataclass(frozen=True, slots=True)
class Sampling:
    """The test of the distribution. `draws` are each side's for each prompt, of `tokens` tokens each.

    `limit` is the bound below which any p-value is a fault, and `power` how often the views find what they
    say that they find.
    """

    temperature: float
    draws: int
    tokens: int
    limit: float
    power: float
    views: tuple[DistributionTest, ...]

    @property
    def is_fault(self) -> bool:
        return any(view.least < self.limit for view in self.views)


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The whole of a verification; `sampling` is None where it was left out."""

    plain: str
    speculative: str
    tolerance: Tolerance
    noise: GreedyComparison
    comparisons: tuple[GreedyComparison, ...]
    prompts: tuple[Difference, ...] = ()
    sampling: Sampling | None = None
    second_opinion: GreedyComparison | None = None
    command: str = ""

    @property
    def reasons(self) -> list[str]:
        """Says why it is no lossless deployment, or nothing was proved; empty where it is one."""
        found = []
        if self.prompts:
            found.append(f"the server reads {len(self.prompts)} of the prompts otherwise than the tokenizer")
        if self.noise.faults or self.tolerance.is_hopeless:
            found.append("plain decoding contradicts itself by more than rounding")
        if faults := sum(len(each.faults) for each in self.comparisons):
            found.append(f"speculation changed the answer in {faults} place{'s' * (faults > 1)}")
        if self.sampling is not None and self.sampling.is_fault:
            found.append("sampled text has another distribution with drafts than without")
        if silent := self._silent:
            lengths = ", ".join(dict.fromkeys(map(_length, silent)))
            found.append(f"nothing was drafted ({lengths}), so nothing is proved")
        if sum(each.drafted or 0 for each in self.comparisons) and not self._accepted:
            found.append("no draft token was accepted, so acceptance was never tried")
        if self.second_opinion is not None and self.second_opinion.faults:
            found.append(f"{self.second_opinion.by} contradicts plain decoding by more than rounding")
        return found

    @property
    def is_lossless(self) -> bool:
        return not self.reasons

    @property
    def _silent(self) -> list[GreedyComparison]:
        """The ways in which nothing was drafted, though it should have been.

        A deployment may rightly draft nothing where it chooses K by itself, if it does so with some K.
        """
        silent = [each for each in self.comparisons if each.drafted == 0]
        is_all = len(silent) == len(self.comparisons)
        return [each for each in silent if is_all or each.num_draft_tokens is not None]

    @property
    def _accepted(self) -> int:
        return sum(each.accepted or 0 for each in self.comparisons)

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it for JSON, with the verdict."""
        bound = {"reason": self.tolerance.reason} | asdict(self.tolerance)
        return {"lossless": self.is_lossless, "reasons": self.reasons, **asdict(self), "tolerance": bound}


def _length(comparison: GreedyComparison) -> str:
    return "K as deployed" if comparison.num_draft_tokens is None else f"K={comparison.num_draft_tokens}"
