"""Checks one pair against the industry's rules of thumb for speculation; pure.

The rules are those that users have read everywhere (December 2025): a draft of 1/10 to 1/50 of its target
with 1 to 8 GB of weights, K of 4 to 8, acceptance of 60 % and more (below 50 % the overhead can eat the
gain), on where the GPU is busy for less than half of the time and answers have over 100 tokens, off where it
is busy for over 80 % or memory is short. They stand for a break-even until one is measured, which decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trtspec.base.units import three_digits
from trtspec.forecast.speedup import tokens_per_round

Verdict = Literal["yes", "no", "unmeasured"]
LENGTHS = (4, 8)
RATIOS = (10, 50)
MOST_DRAFT_GB = 8
ACCEPTANCE, LOW_ACCEPTANCE = 0.6, 0.5
ANSWER_TOKENS = 100
IDLE, BUSY = 0.5, 0.8
_NO_RUN = "run trtspec bench, then plan --measured"


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The results of a run that the rules use; None for what it did not measure."""

    answer_tokens: float | None = None
    gpu_use: float | None = None
    """The share of time in which the GPUs were busy without drafts at the lowest load."""
    acceptance: tuple[float, ...] = ()
    """The acceptance of each position where all positions before it were accepted."""
    accepted: float | None = None
    """Accepted over drafted tokens."""
    tokens_per_second: float | None = None
    decision: str = "unmeasured"
    """The bench's decision: `on`, `up_to`, `off`, `undecided` or `unmeasured`."""
    words: str = ""
    """The sentence of the decision."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The roofline's expectation for one stream."""

    draft_cost: float
    """The cost of one draft token in plain steps."""
    usual_lengths: tuple[int, int]
    """The best lengths, without the recipe's limit, at acceptances of 0.6 and 0.8."""
    break_even: float | None
    """The acceptance from which on drafts gain; None if they never do."""
    tokens_per_second: float
    limit: str
    """The thing that a plain step waits for."""


@dataclass(frozen=True, slots=True)
class PairFacts:
    """The facts of a plan's pair.

    Parameters are those that compute a token. A mixture of experts has more.
    """

    target_parameters: int
    draft_parameters: int | None
    """None if there is no draft model."""
    draft_bytes: int | None
    """None if there is no draft model."""
    length: int
    """K, or the longest draft that a policy may choose."""
    max_batch_size: int
    """The largest number of requests at once."""
    requests: int | None
    """The number of requests of full length that fit into the KV caches; None if that is not known."""
    problem: str | None = None
    """The reason why the engines do not fit."""
    expected: Expected | None = None
    rollout: str | None = None
    """The state of the build's roll-out; None before it began."""
    rolls_out: bool = True
    """False where the server has no roll-outs."""
    inside: int | None = None
    """The number of tokens that an engine which drafts by itself proposes in each step; it has no K."""

    @property
    def short(self) -> bool:
        """True if fewer requests fit than may come at once."""
        return self.requests is not None and self.requests < self.max_batch_size


@dataclass(frozen=True, slots=True)
class Judgement:
    """One rule, applied to a pair."""

    rule: str
    """The demand, in a few words."""
    verdict: Verdict
    """The verdict says whether the rule holds."""
    number: str
    """The finding: a number with its unit, or a few words."""
    then: str = ""
    """The consequence, or what to do."""


@dataclass(frozen=True, slots=True)
class RuleAdvice:
    """The rules that were applied to a pair, and the conclusion."""

    rules: tuple[Judgement, ...]
    checklist: tuple[Judgement, ...]
    """The checklist before production."""
    words: str
    """The conclusion from both in a sentence."""


def advise(facts: PairFacts, measured: MeasuredRun | None) -> RuleAdvice:
    """Returns the rules applied to a pair, with its measured results if there are any."""
    seen = measured or MeasuredRun()
    of_drafts = [] if facts.inside else [_length(facts), _acceptance(facts, seen)]
    rules = [
        *_draft(facts),
        *of_drafts[:1],
        _memory(facts),
        *of_drafts[1:],
        _gpu_use(seen),
        _answers(seen),
        _break_even(seen),
    ]
    return RuleAdvice(tuple(rules), tuple(_checklist(facts, seen)), _words(rules, facts, seen))


def _draft(facts: PairFacts) -> list[Judgement]:
    if facts.draft_parameters is None or facts.draft_bytes is None:
        return []
    ratio, size = facts.target_parameters / facts.draft_parameters, facts.draft_bytes
    low, high = RATIOS
    if ratio < low:
        then = "a smaller draft costs less a token; trtspec tune compares"
    else:
        then = "a larger draft may be accepted more often; trtspec tune compares" if ratio > high else ""
    return [
        Judgement(
            f"draft of 1/{low} to 1/{high} of the target", _if(low <= ratio <= high), f"1/{ratio:.0f}", then
        ),
        Judgement(
            f"draft weights of at most {MOST_DRAFT_GB} GB",
            _if(size <= MOST_DRAFT_GB * 10**9),
            three_digits(size),
            "" if size <= MOST_DRAFT_GB * 10**9 else "FP8 halves it",
        ),
    ]


def _length(facts: PairFacts) -> Judgement:
    (low, high), then = LENGTHS, ""
    holds, number = low <= facts.length <= high, f"up to {facts.length}"
    if facts.expected:
        least, most = facts.expected.usual_lengths
        number += f", each {facts.expected.draft_cost:.2f} of a step"
        then = f"best {least} to {most} at acceptance 0.6 to 0.8, one stream"
        if not least <= facts.length:
            then += f"; max_draft_len {most} allows it"
    return Judgement(f"K of {low} to {high}, by what a draft token costs", _if(holds), number, then)


def _memory(facts: PairFacts) -> Judgement:
    rule = "memory for the whole batch"
    if facts.problem:
        return Judgement(rule, "no", "does not fit", facts.problem)
    number = f"max_batch_size {facts.max_batch_size}"
    if facts.requests is None:
        return Judgement(rule, "unmeasured", number, "the server reports it when it starts")
    number = f"{facts.requests} requests at full length, {number}"
    return Judgement(rule, _if(not facts.short), number, "batch instead, or free memory" * facts.short)


def _acceptance(facts: PairFacts, seen: MeasuredRun) -> Judgement:
    rule = f"acceptance of {ACCEPTANCE:.0%} and more"
    if not seen.acceptance:
        even = facts.expected.break_even if facts.expected else None
        known = f"gains from {even:.2f} on, by the model" if even is not None else ""
        return Judgement(rule, "unmeasured", "", "; ".join(filter(None, [known, _NO_RUN])))
    mean = mean_acceptance(seen.acceptance)
    number = f"{mean:.0%} a position"
    if seen.accepted is not None:
        number += f", {seen.accepted:.0%} of all drafted"
    then = ""
    if mean < LOW_ACCEPTANCE:
        then = "overhead can eat the gain: trtspec distill, another draft, or none"
    elif mean < ACCEPTANCE:
        then = "trtspec distill, or another draft"
    return Judgement(rule, _if(mean >= ACCEPTANCE), number, then)


def mean_acceptance(acceptance: Sequence[float]) -> float:
    """Returns the one probability for all positions that gives as many tokens a round."""
    expected, low, high = tokens_per_round(acceptance), 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        given = tokens_per_round([middle] * len(acceptance))
        low, high = (middle, high) if given < expected else (low, middle)
    return high


def _gpu_use(seen: MeasuredRun) -> Judgement:
    rule = f"GPU busy for less than {IDLE:.0%} of the time"
    if seen.gpu_use is None:
        return Judgement(rule, "unmeasured", "", _NO_RUN)
    then = ""
    if seen.gpu_use > BUSY:
        then = f"over {BUSY:.0%}: batch instead"
    elif seen.gpu_use >= IDLE:
        then = "between the bounds, break-even decides"
    return Judgement(rule, _if(seen.gpu_use < IDLE), f"{seen.gpu_use:.0%}", then)


def _answers(seen: MeasuredRun) -> Judgement:
    rule = f"answers of over {ANSWER_TOKENS} tokens"
    if seen.answer_tokens is None:
        return Judgement(rule, "unmeasured", "", _NO_RUN)
    holds = seen.answer_tokens > ANSWER_TOKENS
    then = "" if holds else "the prompt's time is most of theirs"
    return Judgement(rule, _if(holds), f"{seen.answer_tokens:.0f} tokens", then)


def _break_even(seen: MeasuredRun) -> Judgement:
    rule = "faster with drafts than without"
    if seen.decision in ("unmeasured", "undecided"):
        number = "" if seen.decision == "unmeasured" else "the intervals leave it open"
        return Judgement(rule, "unmeasured", number, seen.words or _NO_RUN)
    return Judgement(rule, _if(seen.decision != "off"), seen.words, "this decides")


def _checklist(facts: PairFacts, seen: MeasuredRun) -> list[Judgement]:
    """Returns the four things to have done before production; a draft inside the engine reports no
    acceptance."""
    has_draft = facts.draft_parameters is not None
    room = "" if facts.requests is None else f", {facts.requests} requests at full length"
    size, finding, step = f"K up to {facts.length}", "trtspec tune finds K by measurement", "trtspec rollout"
    if not facts.rolls_out:
        step = "a router before it and the same without drafts, deploy --plain"
    if facts.inside:
        size, finding = f"{facts.inside} drafted tokens a step", "each number of them is a build of its own"
        step = "a canary beside the old build: the engine drafts for every request"
    limit = f", limit: {facts.expected.limit}" if facts.expected else ""
    expected = (
        f"{facts.expected.tokens_per_second:.0f} tokens/s expected of one stream{limit}"
        if facts.expected
        else ""
    )
    measured = seen.tokens_per_second
    acceptance = f"{mean_acceptance(seen.acceptance):.0%} a position" if seen.acceptance else ""
    found = [
        Judgement(
            "baseline: latency, throughput, GPU use, what it is bound by",
            "yes" if measured is not None else "unmeasured",
            f"{measured:.0f} tokens/s without drafts{limit}" if measured is not None else expected,
            "" if measured is not None else "trtspec bench",
        ),
        Judgement(
            "draft: several sizes on your prompts, acceptance measured"
            if has_draft
            else "drafts: acceptance measured on your prompts",
            "yes" if seen.acceptance else "unmeasured",
            acceptance or ("" if has_draft else "looked up in the text"),
            "trtspec tune compares; trtspec distill where it is under 60 %" if has_draft else "trtspec tune",
        ),
        Judgement(
            "tuning: K against what a draft costs, memory at the batch sizes wanted",
            "no" if facts.problem else "unmeasured" if seen.decision == "unmeasured" else "yes",
            f"{size}{room}",
            finding,
        ),
        Judgement(
            "rollout: step by step, monitored, with a way back",
            "yes" if facts.rollout else "unmeasured",
            f"at step {facts.rollout}" if facts.rollout else "",
            step,
        ),
    ]
    return [found[0], *found[2:]] if facts.inside else found


def _words(rules: Sequence[Judgement], facts: PairFacts, seen: MeasuredRun) -> str:
    if facts.problem:
        return f"does not fit: {facts.problem}"
    if seen.decision not in ("unmeasured", "undecided"):
        return seen.words
    if seen.gpu_use is not None and seen.gpu_use > BUSY:
        return f"batch instead: the GPU is busy for {seen.gpu_use:.0%} of the time without drafts"
    if facts.short:
        return f"batch instead: the KV cache holds {facts.requests} of {facts.max_batch_size} requests"
    even = facts.expected.break_even if facts.expected else None
    if facts.expected and even is None:
        return "off: even drafts that are always right would gain nothing"
    use, answers = seen.gpu_use, seen.answer_tokens
    if use is not None and use < IDLE and answers is not None and answers > ANSWER_TOKENS:
        return f"on, by the rules: the GPU is busy for {use:.0%}, answers have {answers:.0f} tokens"
    failed = sum(rule.verdict == "no" for rule in rules)
    against = f", {failed} against" if failed else ""
    worth = "worth a measurement"
    if even is not None:
        worth += f": gains for one stream from acceptance {even:.2f} on"
    return (
        f"{worth}; {sum(rule.verdict == 'yes' for rule in rules)} rules for it{against}, the rest needs a run"
    )


def _if(holds: bool) -> Verdict:
    return "yes" if holds else "no"
