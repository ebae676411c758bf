"""Selects the two sides of a report: the two arms of a result, as drafts or as servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor

from trtspec.measure.bench.result import ArmFigures, BenchResult, DraftFigures, OfferedLoad
from trtspec.measure.html.plot import Loads


@dataclass(frozen=True, slots=True)
class ReportArm:
    """An arm of a comparison, with its figures."""

    name: str
    """The full name."""
    short: str
    """The name in tables."""
    phrase: str
    """The name in sentences."""
    kind: str
    """The style class."""
    figures: tuple[tuple[OfferedLoad, ArmFigures], ...]
    """Each load with the figures of the arm at it."""

    @property
    def drafts(self) -> list[DraftFigures]:
        """The figures of its drafts, for each load that has some."""
        known = (figures.drafts for _, figures in self.figures)
        return [drafts for drafts in known if drafts and drafts.acceptance.verifications]


@dataclass(frozen=True, slots=True)
class MeasuredArms:
    """The arms of a comparison. There are at most two of them, and each has at least one load."""

    label: str
    """The head of the table column that names the arm."""
    base: int
    """The index of the arm that the other is compared to."""
    arms: tuple[ReportArm, ...]

    @property
    def loads(self) -> list[OfferedLoad]:
        """Every load, the lowest first."""
        found = {load for arm in self.arms for load, _ in arm.figures}
        return sorted(found, key=lambda load: (load.kind, load.value))

    @property
    def header(self) -> tuple[str, str]:
        """The headers of the columns of `cells`."""
        return "streams" if self.loads[0].kind == "streams" else "asked/s", self.label

    @property
    def axis(self) -> Loads:
        return axis_of(self.loads)

    def change(self, values: Sequence[float]) -> float | None:
        """Returns the difference of the other arm's value from the base's, as a share of the base's."""
        if len(values) != 2 or not values[self.base]:
            return None
        return values[1 - self.base] / values[self.base] - 1

    def each(self) -> Iterator[tuple[OfferedLoad, ReportArm, ArmFigures]]:
        """Yields the figures of both arms for each load."""
        for load in self.loads:
            for arm in self.arms:
                for its, figures in arm.figures:
                    if its == load:
                        yield load, arm, figures


def of_result(result: BenchResult) -> MeasuredArms:
    """Returns the arms of one result: with drafts, and without if that was measured."""
    drafted = tuple((level.load, level.arms.speculative) for level in result.levels)
    plain = tuple((level.load, level.arms.plain) for level in result.levels if level.arms.plain)
    arms = [
        ReportArm("with drafts", "with", "with drafts", "drafts", drafted),
        ReportArm("without drafts", "without", "without", "plain", plain),
    ]
    return MeasuredArms("drafts", 1, tuple(arm for arm in arms if arm.figures))


def of_servers(result: BenchResult) -> MeasuredArms:
    """Returns the arms of a result that compares two servers: the new one, and the old one."""
    new = tuple((level.load, level.arms.speculative) for level in result.levels)
    old = tuple((level.load, level.arms.plain) for level in result.levels if level.arms.plain)
    arms = [
        ReportArm("new", "new", "of the new", "drafts", new),
        ReportArm("old", "old", "of the old", "plain", old),
    ]
    return MeasuredArms("server", 1, tuple(arm for arm in arms if arm.figures))


def cells(load: OfferedLoad, arm: ReportArm) -> tuple[str, str]:
    """Returns the first two cells of a row of a table."""
    return f"{load.value:g}", arm.short


def axis_of(loads: Sequence[OfferedLoad]) -> Loads:
    """Returns the axis of loads, of which there is at least one."""
    is_streams = loads[0].kind == "streams"
    title = "streams at once" if is_streams else "requests a second"
    return Loads(title, tuple(sorted(load.value for load in loads)), is_streams)


def between(loads: Sequence[OfferedLoad], value: float) -> str:
    """Returns in words a load between measured ones: 24 streams, 3.4 streams."""
    return str(OfferedLoad(loads[0].kind, _rounded(value)))


def short(value: float) -> str:
    """Returns a load as a number alone."""
    return f"{_rounded(value):g}"


def at_most(loads: Sequence[OfferedLoad], value: float) -> str:
    """Returns in words the largest load up to this one; streams are whole."""
    kind = loads[0].kind
    return str(OfferedLoad(kind, max(floor(value + 1e-9), 1))) if kind == "streams" else between(loads, value)


def _rounded(value: float) -> float:
    return round(value, 0 if value >= 10 else 1)
