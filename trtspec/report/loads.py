"""The loads of a result, as axis and as words."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.bench.result import Level, Load
from trtspec.report import axis
from trtspec.report.axis import Axis


def title(levels: Sequence[Level]) -> str:
    """Returns what the axis of loads is called."""
    return "streams at once" if levels[0].load.kind == "streams" else "requests a second"


def axis_of(levels: Sequence[Level]) -> tuple[str, Axis]:
    """Returns the axis with its title; there is at least one level."""
    return title(levels), axis.of_loads([level.load.value for level in levels], "{:g}".format)


def header(levels: Sequence[Level]) -> str:
    """Returns what a table's column of loads is called; `cell` is what stands in it."""
    return "streams" if levels[0].load.kind == "streams" else "asked/s"


def cell(level: Level) -> str:
    return f"{level.load.value:g}"


def at(levels: Sequence[Level], value: float) -> str:
    """Returns a load between those that were measured in words: 24 streams."""
    return str(Load(levels[0].load.kind, float(f"{value:.3g}")))
