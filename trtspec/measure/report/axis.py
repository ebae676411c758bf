"""Places values on an axis of a plot, and chooses the values that it names; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

_CROWDED = 40.0
"""The ratio of the largest to the smallest value from which powers are easier to read than steps."""
_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a plot, from its lowest to its highest value."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    """The values that are labelled, each with its words."""
    logarithmic: bool = False
    """True gives each doubling the same room."""

    def place(self, value: float) -> float:
        """Returns a value's position, from 0.0 at `low` to 1.0 at `high`."""
        if self.logarithmic:
            low, high, here = log10(self.low), log10(self.high), log10(max(value, self.low))
        else:
            low, high, here = self.low, self.high, value
        return min(max((here - low) / (high - low), 0.0), 1.0)


def of_loads(loads: Sequence[float], name: Callable[[float], str]) -> Axis:
    """Returns the axis of loads, with one tick for each measured load.

    Loads usually double, so each doubling has the same room unless there are too few loads.
    """
    low, high = min(loads), max(loads)
    if low == high:
        return Axis(low * 0.5, high * 1.5, ((low, name(low)),))
    logarithmic = low > 0 and high / low >= 4
    axis = Axis(low, high, (), logarithmic)
    kept: list[float] = []
    for load in sorted(set(loads)):
        if not kept or axis.place(load) - axis.place(kept[-1]) > 0.07:
            kept.append(load)
    return Axis(low, high, tuple((load, name(load)) for load in kept), logarithmic)


def of_amounts(values: Iterable[float], name: Callable[[float], str]) -> Axis:
    """Returns an axis from zero, or by powers if the values are far apart."""
    positive = [value for value in values if value > 0]
    if not positive:
        return Axis(0, 1, ((0, name(0)), (1, name(1))))
    low, high = min(positive), max(positive)
    if high / low >= _CROWDED:
        return _of_powers(low, high, name)
    step = _step(high)
    top = step * ceil(high / step - 1e-9)
    return Axis(0, top, _ticks(0, top, step, name))


def of_ratios(values: Iterable[float], name: Callable[[float], str]) -> Axis:
    """Returns the axis of ratios, in which 1 always lies well inside."""
    values = [*values, 1.0]
    room = max(max(values) - min(values), 0.5)
    step = _step(room * 1.2)
    low = step * floor((min(values) - 0.12 * room) / step)
    high = step * ceil((max(values) + 0.12 * room) / step)
    return Axis(max(low, 0), high, _ticks(max(low, 0), high, step, name))


def _of_powers(low: float, high: float, name: Callable[[float], str]) -> Axis:
    marks = [digit * 10.0**power for power in range(-9, 13) for digit in (1, 2, 5)]
    first = max((mark for mark in marks if mark <= low), default=low)
    last = min((mark for mark in marks if mark >= high), default=high)
    between = [mark for mark in marks if first <= mark <= last]
    kept = between if len(between) <= 7 else [mark for mark in between if f"{mark:e}"[0] == "1"]
    return Axis(first, last, tuple((mark, name(mark)) for mark in kept), logarithmic=True)


def _step(room: float, most: int = 5) -> float:
    """Returns a round step that fits the room at most `most` times."""
    exact = room / most
    unit = 10.0 ** floor(log10(exact))
    return next(unit * step for step in _STEPS if unit * step >= exact * (1 - 1e-9))


def _ticks(
    low: float, high: float, step: float, name: Callable[[float], str]
) -> tuple[tuple[float, str], ...]:
    count = round((high - low) / step)
    return tuple((low + step * number, name(low + step * number)) for number in range(count + 1))
