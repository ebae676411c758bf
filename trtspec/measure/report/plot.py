"""Plots values by load: a line for each way of decoding, with a point for each measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from markupsafe import Markup

from trtspec.measure.report.document import Figure, LegendKey
from trtspec.measure.report.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Drawing

_ROOMY = 8
"""Up to this many points have room for two digits each."""
_CROWDED = 40.0
"""The ratio of the largest to the smallest value from which powers are easier to read than steps."""
_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """A measured value, with its interval where there is one."""

    x: float
    y: float
    words: str
    """The value in full."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot."""

    name: str
    kind: str
    """The style class. The legend uses it too."""
    points: tuple[PlotPoint, ...]
    """In the order of their load."""


def draw(
    words: str,
    lines: Sequence[Line],
    x: tuple[str, Axis],
    y: tuple[str, Axis],
    *,
    level: tuple[float, str] | None = None,
    mark: tuple[float, str] | None = None,
    scattered: Sequence[PlotPoint] = (),
    named: bool = False,
) -> Markup:
    """Returns the plot; `x` and `y` are an axis with its title, `words` are for screen readers.

    `level` is a value that lines are compared with, and the meaning of a point above or below it. `mark` is a
    load with its words. `scattered` are single observations behind the lines. `named` writes the value at
    each point of a line, which is readable for a single line only.
    """
    frame = _Frame(Drawing(WIDTH, HEIGHT, words), x[1], y[1])
    if level:
        frame.level(*level)
    frame.axes(x[0], y[0])
    if mark:
        frame.mark(*mark)
    for point in scattered:
        frame.scattered(point)
    for line in lines:
        frame.line(line)
    for line in lines:
        frame.points(line, named)
    return frame.drawing.markup()


def amounts(
    words: str, lines: Iterable[Line], x: tuple[str, Axis], unit: str, name: Callable[[float], str]
) -> Figure:
    """Returns the plot of amounts with its legend, without lines that have no points."""
    lines = [line for line in lines if line.points]
    ends = [end for line in lines for point in line.points for end in (point.y, point.high or point.y)]
    plot = draw(words, lines, x, (unit, of_amounts(ends, name)))
    return Figure(plot, tuple(LegendKey(line.kind, line.name) for line in lines))


class _Frame:
    """A drawing with two axes, which set the position of values."""

    def __init__(self, drawing: Drawing, x: Axis, y: Axis) -> None:
        self.drawing = drawing
        self._x, self._y = x, y

    def x(self, value: float) -> float:
        # A margin keeps the first and the last point fully visible.
        return LEFT + 12 + (WIDTH - LEFT - RIGHT - 24) * self._x.place(value)

    def y(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - self._y.place(value))

    def axes(self, x_title: str, y_title: str) -> None:
        for value, name in self._y.ticks:
            self.drawing.line(LEFT, self.y(value), WIDTH - RIGHT, self.y(value), "grid")
            self.drawing.text(LEFT - 6, self.y(value) + 4, name, "tick end")
        bottom = HEIGHT - BOTTOM
        self.drawing.line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis")
        for value, name in self._x.ticks:
            self.drawing.line(self.x(value), bottom, self.x(value), bottom + 4, "axis")
            self.drawing.text(self.x(value), bottom + 17, name, "tick middle")
        self.drawing.text(WIDTH - RIGHT, HEIGHT - 5, x_title, "title end")
        self.drawing.text(2, 12, y_title, "title")

    def level(self, value: float, words: str) -> None:
        y, right = self.y(value), WIDTH - RIGHT
        self.drawing.box(LEFT, TOP, right - LEFT, y - TOP, "better")
        self.drawing.box(LEFT, y, right - LEFT, HEIGHT - BOTTOM - y, "worse")
        self.drawing.line(LEFT, y, right, y, "level")
        # Outside, where no point can be.
        self.drawing.text(right, 12, words, "note end")

    def mark(self, load: float, words: str) -> None:
        x, bottom = self.x(load), HEIGHT - BOTTOM
        self.drawing.line(x, TOP, x, bottom, "mark")
        at_end = x > WIDTH / 2
        self.drawing.text(x + (-5 if at_end else 5), bottom - 20, words, f"note strong{' end' * at_end}")

    def scattered(self, point: PlotPoint) -> None:
        # It is beside the interval of the same load, which would hide it.
        self.drawing.dot(self.x(point.x) - 9, self.y(point.y), 1.6, "scatter", point.words)

    def line(self, line: Line) -> None:
        for point in line.points:
            if point.low is not None and point.high is not None:
                x, low, high = self.x(point.x), self.y(point.low), self.y(point.high)
                self.drawing.line(x, low, x, high, f"{line.kind} whisker")
                for end in (low, high):
                    self.drawing.line(x - 4, end, x + 4, end, f"{line.kind} whisker")
        if len(line.points) > 1:
            places = [(self.x(point.x), self.y(point.y)) for point in line.points]
            self.drawing.path(places, f"{line.kind} line")

    def points(self, line: Line, named: bool) -> None:
        for point in line.points:
            x, y = self.x(point.x), self.y(point.y)
            self.drawing.dot(x, y, 3.5, f"{line.kind} dot", point.words)
            if named:
                above = min(y, self.y(point.high if point.high is not None else point.y)) - 7
                words = f"{point.y:.2f}x" if len(line.points) <= _ROOMY else f"{point.y:.1f}x"
                self.drawing.text(x, above, words, "value middle")


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


def _step(room: float) -> float:
    """Returns a round step that fits the room at most five times."""
    exact = room / 5
    unit = 10.0 ** floor(log10(exact))
    return next(unit * step for step in _STEPS if unit * step >= exact * (1 - 1e-9))


def _ticks(
    low: float, high: float, step: float, name: Callable[[float], str]
) -> tuple[tuple[float, str], ...]:
    count = round((high - low) / step)
    return tuple((low + step * number, name(low + step * number)) for number in range(count + 1))
