"""Formats the report's numbers: with useful digits, and their unit."""

from __future__ import annotations

from collections.abc import Callable
from math import floor, log10

from markupsafe import Markup

from trtspec.measure.bench.result import Interval

NOTHING = "-"


def plain(value: float | None, digits: int = 3) -> str:
    """Returns a number with this many significant digits, at most two after the point: 1,234, 12.3, 0.12."""
    if value is None:
        return NOTHING
    rounded = abs(float(f"{value:.{digits}g}"))
    decimals = min(max(digits - 1 - floor(log10(rounded)), 0), 2) if rounded else 0
    return f"{value:,.{decimals}f}"


def times(ratio: Interval | None) -> str:
    """Returns a ratio without its interval: 1.93x."""
    return NOTHING if ratio is None else f"{ratio.value:.2f}x"


def interval(ratio: Interval | None) -> str:
    """Returns the two ends of the interval of a ratio: 1.83 - 2.02."""
    return NOTHING if ratio is None else f"{ratio.low:.2f} - {ratio.high:.2f}"


def percent(share: float | None) -> str:
    """Returns a share of 1 in percent: 73%, 0.4%, 99.95%; only 1 itself is 100%."""
    if share is None:
        return NOTHING
    value = 100 * share
    if 0 < value < 1:
        return f"{value:.1g}%"
    if 99 < value < 100:
        return f"{floor(value * 100) / 100:g}%"
    return f"{value:.0f}%"


def duration(seconds: float | None) -> str:
    """Returns a time with three digits in the unit that suits it: 41.3 ms, 2.10 s, 6 min."""
    if seconds is None:
        return NOTHING
    if seconds < 1e-3:
        return f"{plain(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{plain(seconds * 1e3)} ms"
    if seconds < 120:
        return f"{plain(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def in_unit(longest: float) -> tuple[float, str]:
    """Returns the unit for a table of times, and how many of these units a second has."""
    return (1e3, "ms") if longest < 2 else (1.0, "s")


def change(share: float) -> str:
    """Returns a relative change: +12%, -3%; 2.4x if the value more than doubled."""
    if share >= 1:
        return f"{plain(1 + share, 2)}x"
    rounded = round(100 * share)
    return f"{'+' if rounded > 0 else '-' if rounded < 0 else ''}{abs(rounded)}%"


def with_interval(value: str, found: Interval | None, of: Callable[[float], str]) -> str:
    """Returns a value with the ends of its interval under it, unless they are the same."""
    if found is None or found.low == found.high:
        return NOTHING if found is None else value
    return Markup("{} <small>{} - {}</small>").format(value, of(found.low), of(found.high))
