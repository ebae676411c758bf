"""Bounds what rounding may change. Below the bound a difference is a near tie, above it a fault."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trtspec.measure.verify.subject import Row

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

    @property
    def reason(self) -> str:
        """Says where the bound comes from."""
        if self.is_given:
            return "as requested"
        if self.noise is not None and self.value > FLOORS[self.dtype]:
            most = CEILINGS[self.dtype]
            return f"{TIMES_NOISE:g} times the noise of plain decoding, at most {most:.2g}"
        return (
            f"the rounding of {self.dtype}, which is at least {TIMES_NOISE:g} times the noise of plain "
            "decoding"
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
    return replace(bound, value=2 * bound.value)


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
