"""Bounds what rounding may change, and measures by how much the target prefers a token to another.

Below the bound a difference is a near tie, above it a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trtspec.measure.verify.sides import END, Row, Side, VerifyRequest

FLOORS = {"float32": 2.0**-10, "float16": 2.0**-5, "bfloat16": 2.0**-2, "fp8": 2.0**-1}
"""The smallest bound in nats, by the type of the numbers.

Logits lie between 8 and 16 or so, where neighbours of bfloat16 are 2^-4 apart and of float16 2^-7: four of
these steps. float32 has room to spare: its sums differ by some 1e-5. Where weights and activations are FP8 a
rounding of bfloat16 becomes one of FP8 at the next layer, and the bound is twice that of bfloat16.
"""
ASSUMED = "bfloat16"
"""The default type: nearly every model is served in it."""
TIMES_NOISE = 2.0
"""How many times the noise of plain decoding is allowed.

The largest move of some thousand positions is far out in the tail already. Verifications use kernels of other
shapes than the plain runs, which adds as many rounding errors again, but no more.
"""
CEILINGS = {"float32": 2.0**-5, "float16": 2.0**-2, "bfloat16": 1.0, "fp8": 1.0}
"""The largest bound by the type of the numbers, and the largest noise that rounding explains.

A GPU may multiply float32 as TF32, which rounds like float16. A token that is e times as likely as another is
never a tie with it.
"""
WIDEST = 20
STEPS = 8
LEAST_BIAS, LARGEST_BIAS = 2.0**-10, 64.0


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The bound of a near tie, and its origin."""

    value: float
    """The bound in nats."""
    dtype: str
    noise: float | None
    """The largest move that plain decoding showed by itself, in nats; None if the engine reports no
    log-probabilities.
    """
    is_given: bool = False
    """True if the user asked for this bound."""
    engines: int = 1
    """2 for a bound between two engines, of which each rounds in its own way."""

    @property
    def reason(self) -> str:
        """Says where the bound comes from."""
        if self.is_given:
            return "as requested"
        twice = ", and twice that for two engines" if self.engines > 1 else ""
        if self.noise is not None and self.value > self.engines * FLOORS[self.dtype]:
            most = CEILINGS[self.dtype]
            return f"{TIMES_NOISE:g} times the noise of plain decoding, at most {most:.2g}{twice}"
        return (
            f"the rounding of {self.dtype}, which is at least {TIMES_NOISE:g} times the noise of plain "
            f"decoding{twice}"
        )

    @property
    def is_hopeless(self) -> bool:
        """True if plain decoding differs from itself by more than rounding explains."""
        return self.noise is not None and self.noise > CEILINGS[self.dtype]


def tolerance(dtype: str | None, noise: float | None, given: float | None = None) -> Tolerance:
    """Returns the bound for numbers of `dtype` (None: not known) on a machine with this `noise`."""
    known = dtype or ASSUMED
    if given is not None:
        return Tolerance(given, known, noise, is_given=True)
    value = min(max(FLOORS[known], TIMES_NOISE * (noise or 0.0)), CEILINGS[known])
    return Tolerance(value, known, noise)


def of_two_engines(bound: Tolerance) -> Tolerance:
    """Returns the bound between two engines with the same weights; each rounds in its own way."""
    return bound if bound.is_given else replace(bound, value=2 * bound.value, engines=2)


def moved(one: Row, other: Row) -> float:
    """Returns the distance of two rows of the same position, in nats.

    That is the largest change of the difference between the log-probabilities of two tokens, which is that of
    their logits: a change that all have in common changes no text. If the likeliest token of one row is
    missing in the other, it fell by at least the span of the other row.
    """
    for row, seen in ((one, other), (other, one)):
        if max(row, key=row.__getitem__) not in seen:
            return max(seen.values()) - min(seen.values())
    differences = [one[token] - other[token] for token in one.keys() & other.keys()]
    return max(differences) - min(differences)


def most_moved(pairs: Iterable[tuple[Row, Row]]) -> float | None:
    """Returns the largest move of all pairs of rows; None without any."""
    return max((moved(one, other) for one, other in pairs), default=None)


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
    target: Side,
    question: VerifyRequest,
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
    if not answer.rows:
        return await _by_bias(target, one, tokens, end_ids, tolerance)
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
    target: Side, one: VerifyRequest, tokens: Sequence[int], end_ids: Sequence[int], tolerance: Tolerance
) -> Margins:
    """Finds each margin by bisection, to one part in 2^8; the first request decides most of them."""

    async def first(bias: dict[int, float]) -> int:
        return (await target.ask(replace(one, bias=bias))).token_ids[0]

    async def wins(token: int, bias: float) -> bool:
        ids = end_ids if token == END else (token,)
        return await first(dict.fromkeys(ids, bias)) in ids

    likeliest = await first({})

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
