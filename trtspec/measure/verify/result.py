"""Holds the result of a verification as plain numbers and words, and its verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from trtspec.measure.verify.sides import Subject
from trtspec.measure.verify.tolerance import Tolerance

Kind = Literal["near tie", "fault"]
CaseState = Literal["ok", "fault", "skipped", "open"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A position where two answers, or their log-probabilities, differ."""

    prompt: str
    """The prompt's name."""
    what: str
    """One of "tokens", "text", "numbers" and "prompt"."""
    kind: Kind
    position: int
    """The index of the token in the answer, from 0. For "text" it counts characters. For "prompt" it is 0."""
    context: str
    """The text before the position."""
    expected: str
    """The result of plain decoding, for people."""
    found: str
    """The other result, for people."""
    meaning: str
    margin: float | None = None
    """How many nats the target prefers its likeliest token to the less likely of both; for "numbers", their
    distance.
    """
    is_at_least: bool = False
    """True if the margin may be larger than stated."""


@dataclass(frozen=True, slots=True)
class GreedyComparison:
    """Compares one way of answering all prompts with plain decoding of one prompt at a time."""

    num_draft_tokens: int | None
    """K; 0 is plain decoding, and None leaves K to the deployment."""
    concurrency: int
    """The number of prompts asked at once."""
    texts: int
    tokens: int
    differences: tuple[Difference, ...]
    moved: float | None
    """The largest move of the numbers, in nats; None without numbers."""
    drafted: int | None = None
    """None if the server does not count."""
    accepted: int | None = None
    """None if the server does not count."""

    @property
    def faults(self) -> list[Difference]:
        return [difference for difference in self.differences if difference.kind == "fault"]

    @property
    def near_ties(self) -> list[Difference]:
        return [difference for difference in self.differences if difference.kind == "near tie"]


@dataclass(frozen=True, slots=True)
class Draws:
    """The continuations of one prompt, with drafts and without, counted by outcome."""

    prompt: str
    outcomes: int
    """The number of outcomes."""
    statistic: float
    p_value: float
    """The probability of counts at least as different if both sides have one distribution."""
    distance: float
    """The total variation between the counts."""
    most_different: str
    """The outcome whose two counts differ most, in words."""


@dataclass(frozen=True, slots=True)
class DistributionTest:
    """One property of continuations, and its test."""

    of: Literal["text", "repeats"]
    """The property that is compared: how continuations begin, or which of their tokens are the same.

    Random numbers that are used twice repeat tokens, whatever they are.
    """
    prompts: tuple[Draws, ...]
    p_value: float
    """The p-value of all prompts together."""
    found_everywhere: float
    """The smallest total variation, the same in all prompts with several outcomes, that the test would have
    found with its power.
    """
    found_in_one: float
    """The same for a total variation in one prompt alone."""

    @property
    def tells(self) -> bool:
        """True if any prompt has more than one outcome."""
        return any(draws.outcomes > 1 for draws in self.prompts)

    @property
    def least(self) -> float:
        """The smallest p-value."""
        return min(self.p_value, *(draws.p_value for draws in self.prompts))


@dataclass(frozen=True, slots=True)
class Sampling:
    """The test of the distribution."""

    temperature: float
    draws: int
    """The draws of each side for each prompt."""
    tokens: int
    """The tokens of each draw."""
    limit: float
    """Any p-value below it is a fault."""
    power: float
    """The probability with which each test finds the total variation that it states."""
    views: tuple[DistributionTest, ...]

    @property
    def is_fault(self) -> bool:
        return any(view.least < self.limit for view in self.views)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The outcome of one case."""

    name: str
    finds: str
    """The kind of fault that it finds."""
    state: CaseState
    """A case is skipped if the plain side has not its feature, and open if only the other side refuses it."""
    found: str = ""
    """The fault, or the reason why it was skipped or is open."""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The result of a verification."""

    plain: str
    """The name of the side that decodes plainly."""
    speculative: str
    """The name of the side that speculates."""
    tolerance: Tolerance
    noise: GreedyComparison
    """Plain decoding of several prompts at once, compared with one at a time."""
    comparisons: tuple[GreedyComparison, ...]
    prompts: tuple[Difference, ...] = ()
    """The prompts that the server tokenized differently from the tokenizer."""
    sampling: Sampling | None = None
    """None if the check was left out."""
    cases: tuple[CaseResult, ...] = ()
    command: str = ""
    subject: Subject = "drafts"

    @property
    def reasons(self) -> list[str]:
        """The reasons why the deployment is not lossless, or why nothing was proved; empty if it is
        lossless."""
        return [*self.doubts, *self.faults]

    @property
    def faults(self) -> list[str]:
        """The faults of drafts, or of the new server."""
        found, is_of_drafts = [], self.subject == "drafts"
        if faults := sum(len(each.faults) for each in self.comparisons):
            who = "speculation changed the answer" if is_of_drafts else "the new server answers otherwise"
            found.append(f"{who} in {faults} place{'s' * (faults > 1)}")
        if self.sampling is not None and self.sampling.is_fault:
            where = "with drafts than without" if is_of_drafts else "on the new server"
            found.append(f"sampled text has another distribution {where}")
        if failed := [each.name for each in self.cases if each.state == "fault"]:
            found.append(f"{len(failed)} of {len(self.cases)} cases failed: {', '.join(failed)}")
        return found

    @property
    def doubts(self) -> list[str]:
        """The reasons why the rest proves nothing."""
        found, is_of_drafts = [], self.subject == "drafts"
        if self.prompts:
            found.append(
                f"the server tokenizes {len(self.prompts)} of the prompts differently from the tokenizer"
            )
        if self.noise.faults or self.tolerance.is_hopeless:
            who = "plain decoding" if is_of_drafts else "the old server"
            found.append(f"{who} contradicts itself by more than rounding")
        if left := [each.name for each in self.cases if each.state == "open"]:
            who = "drafts" if is_of_drafts else "the new server"
            found.append(f"{len(left)} of {len(self.cases)} cases are open for {who}: {', '.join(left)}")
        if not is_of_drafts:
            return found
        if lengths := dict.fromkeys(each.num_draft_tokens for each in self._silent):
            tried = ", ".join("K as deployed" if k is None else f"K={k}" for k in lengths)
            found.append(f"nothing was drafted ({tried}), so nothing is proved")
        accepted = sum(each.accepted or 0 for each in self.comparisons)
        if sum(each.drafted or 0 for each in self.comparisons) and not accepted:
            found.append("no draft token was accepted, so acceptance was not tested")
        return found

    @property
    def is_lossless(self) -> bool:
        return not self.reasons

    @property
    def _silent(self) -> list[GreedyComparison]:
        """The ways in which nothing was drafted, though it should have been.

        A deployment that chooses K itself may draft nothing, as long as it drafts when a request sets K.
        """
        silent = [each for each in self.comparisons if each.drafted == 0]
        is_all = len(silent) == len(self.comparisons)
        return [each for each in silent if is_all or each.num_draft_tokens is not None]

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it for JSON, with the verdict."""
        bound = {"reason": self.tolerance.reason} | asdict(self.tolerance)
        return {"lossless": self.is_lossless, "reasons": self.reasons, **asdict(self), "tolerance": bound}
