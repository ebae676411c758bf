"""A number that the project promises."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """A number that the project promises; `at_least` or else at most.

    `spread` has the 5th and the 95th percentile of the measured number, where it is one of many blocks.
    """

    name: str
    measured: float
    bar: float
    at_least: bool
    spread: tuple[float, float] | None = None

    @property
    def is_met(self) -> bool:
        return self.measured >= self.bar if self.at_least else self.measured <= self.bar

    @property
    def is_sure(self) -> bool:
        """Whether another run would say the same: the bar is not within the spread."""
        return self.spread is None or not self.spread[0] <= self.bar <= self.spread[1]

    def __str__(self) -> str:
        verdict, sign = "met   " if self.is_met else "MISSED", ">=" if self.at_least else "<="
        spread = f" ({self.spread[0]} to {self.spread[1]})" if self.spread else ""
        doubt = "" if self.is_sure else "; the bar is within the spread: run it on a quieter machine"
        return f"{verdict}  {self.name}: {self.measured}{spread}, bar {sign} {self.bar}{doubt}"
