"""Plots values by load: a line for each way of decoding, with a point for each measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from trtspec.measure.report.axis import Axis
from trtspec.measure.report.drawing import Drawing

WIDTH, HEIGHT = 400.0, 232.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 26.0, 40.0
_ROOMY = 8
"""Up to this many points have room for two digits each."""


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


@dataclass(frozen=True, slots=True)
class Mark:
    """A marked load, such as the break-even."""

    x: float
    words: str


@dataclass(frozen=True, slots=True)
class Threshold:
    """A value that lines are compared with."""

    y: float
    words: str
    """The meaning of a point above it, and of one below."""


def draw(
    words: str,
    lines: Sequence[Line],
    x: tuple[str, Axis],
    y: tuple[str, Axis],
    *,
    level: Threshold | None = None,
    marks: Sequence[Mark] = (),
    scattered: Sequence[PlotPoint] = (),
    named: bool = False,
) -> Markup:
    """Returns the plot; `x` and `y` are an axis with its title, `words` are for screen readers.

    `scattered` are single observations behind the lines. `named` writes the value at each point of a line,
    which is readable for a single line only.
    """
    frame = _Frame(Drawing(WIDTH, HEIGHT, words), x[1], y[1])
    if level:
        frame.level(level)
    frame.axes(x[0], y[0])
    for mark in marks:
        frame.mark(mark)
    for point in scattered:
        frame.scattered(point)
    for line in lines:
        frame.line(line)
    for line in lines:
        frame.points(line, named)
    return frame.drawing.markup()


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

    def level(self, level: Threshold) -> None:
        y, right = self.y(level.y), WIDTH - RIGHT
        self.drawing.box(LEFT, TOP, right - LEFT, y - TOP, "better")
        self.drawing.box(LEFT, y, right - LEFT, HEIGHT - BOTTOM - y, "worse")
        self.drawing.line(LEFT, y, right, y, "level")
        # Outside, where no point can be.
        self.drawing.text(right, 12, level.words, "note end")

    def mark(self, mark: Mark) -> None:
        x = self.x(mark.x)
        self.drawing.line(x, TOP, x, HEIGHT - BOTTOM, "mark")
        at_end = x > WIDTH / 2
        self.drawing.text(
            x + (-5 if at_end else 5), HEIGHT - BOTTOM - 20, mark.words, f"note strong{' end' * at_end}"
        )

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
            self.drawing.path(
                [(self.x(point.x), self.y(point.y)) for point in line.points], f"{line.kind} line"
            )

    def points(self, line: Line, named: bool) -> None:
        for point in line.points:
            x, y = self.x(point.x), self.y(point.y)
            self.drawing.dot(x, y, 3.5, f"{line.kind} dot", point.words)
            if named:
                above = min(y, self.y(point.high if point.high is not None else point.y)) - 7
                words = f"{point.y:.2f}x" if len(line.points) <= _ROOMY else f"{point.y:.1f}x"
                self.drawing.text(x, above, words, "value middle")
