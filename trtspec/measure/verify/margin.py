"""Computes the margin at one position: by how much the target prefers its likeliest token to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trtspec.measure.verify.subject import END, Subject, SubjectAnswer, SubjectRequest
from trtspec.measure.verify.tolerance import Tolerance

WIDEST = 20
STEPS = 8
LEAST_BIAS, LARGEST_BIAS = 2.0**-10, 64.0


@dataclass(frozen=True, slots=True)
class Margins:
    """The likeliest token at one position, and how much less likely others are."""

    likeliest: int
    behind: dict[int, float]
    """For each requested token, how many nats less likely it is."""
    is_at_least: bool = False
    """True if a margin may be larger than stated."""

    def within(self, tolerance: Tolerance) -> bool:
        """Says whether rounding alone can choose between all the tokens."""
        return self.largest <= tolerance.value and not self.is_at_least

    @property
    def largest(self) -> float:
        return max(self.behind.values())


async def margins(
    target: Subject,
    question: SubjectRequest,
    tokens: Sequence[int],
    end_ids: Sequence[int],
    tolerance: Tolerance,
) -> Margins:
    """Asks the target alone for one token after the question's prompt, and returns the margins of `tokens`.

    `question` is a plain request whose prompt, in token ids, ends before the position. `END` stands for the
    likeliest of the `end_ids`. For an engine without log-probabilities a bias is used: the margin of a token
    is the smallest bias on its logit that makes it the target's choice.
    """
    one = replace(question, max_tokens=1, ignores_end=True)
    if not target.top_log_probs:
        return await _by_bias(target, one, tokens, end_ids, tolerance)
    answer = await target.ask(replace(one, top_log_probs=min(target.top_log_probs, WIDEST)))
    row = answer.rows[0]
    likeliest, least = max(row, key=row.__getitem__), min(row.values())
    top, behind, is_at_least = row[likeliest], {}, False
    for token in tokens:
        known = [row[each] for each in (end_ids if token == END else (token,)) if each in row]
        is_at_least |= not known
        behind[token] = top - max(known, default=least)
    found = Margins(likeliest, behind, is_at_least)
    if is_at_least and found.largest <= tolerance.value:
        # The row is full of tokens near the likeliest, and this one is not among them.
        return await _by_bias(target, one, tokens, end_ids, tolerance)
    return found


async def _by_bias(
    target: Subject, one: SubjectRequest, tokens: Sequence[int], end_ids: Sequence[int], tolerance: Tolerance
) -> Margins:
    """Finds each margin by bisection, to one part in 2^8; the first request decides most of them."""
    likeliest = _token(await target.ask(one))

    async def wins(token: int, bias: float) -> bool:
        ids = end_ids if token == END else (token,)
        return _token(await target.ask(replace(one, bias=dict.fromkeys(ids, bias)))) in ids

    behind, is_at_least = {}, False
    for token in tokens:
        if token == likeliest or (token == END and likeliest in end_ids):
            behind[token] = 0.0
            continue
        low, high = 0.0, tolerance.value or LEAST_BIAS
        while not await wins(token, high) and high < LARGEST_BIAS:
            low, high = high, min(2 * high, LARGEST_BIAS)
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if await wins(token, middle) else (middle, high)
        is_at_least |= low >= LARGEST_BIAS * (1 - 2.0**-STEPS)
        behind[token] = high
    return Margins(likeliest, behind, is_at_least)


def _token(answer: SubjectAnswer) -> int:
    return answer.token_ids[0]
