"""Draws shares as bars: in a table's cells, and as a plot with a column for each position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from trtspec.measure.report.drawing import Drawing
from trtspec.measure.report.lines import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from trtspec.measure.report.numbers import percent

_WIDTH, _HEIGHT = 120.0, 10.0
"""The size of a bar in a cell."""


def share(value: float, kind: str, words: str) -> Markup:
    """Returns the bar of a share of 1."""
    drawing = Drawing(_WIDTH, _HEIGHT, words)
    drawing.box(0, 0, _WIDTH, _HEIGHT, "empty")
    drawing.box(0, 0, _WIDTH * value, _HEIGHT, f"{kind} fill", words)
    return drawing.markup()


def parts(shares: Sequence[tuple[str, float]], words: str) -> Markup:
    """Returns a bar of parts, each with its style class; together they are at most 1."""
    drawing = Drawing(_WIDTH, _HEIGHT, words)
    drawing.box(0, 0, _WIDTH, _HEIGHT, "empty")
    left = 0.0
    for kind, value in shares:
        drawing.box(_WIDTH * left, 0, _WIDTH * value, _HEIGHT, f"{kind} fill")
        left += value
    return drawing.markup()


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one kind of share."""

    name: str
    kind: str
    """The style class."""
    shares: tuple[float, ...]
    """One share, 0 to 1, for each position."""


def columns(words: str, kinds: Sequence[Columns], names: Sequence[str], x_title: str, y_title: str) -> Markup:
    """Returns the plot of shares; `names` are those of the positions, `words` are for screen readers."""
    drawing = Drawing(WIDTH, HEIGHT, words)
    bottom, height = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    for level in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - height * level
        drawing.line(LEFT, y, WIDTH - RIGHT, y, "grid" if level else "axis")
        drawing.text(LEFT - 6, y + 4, percent(level), "tick end")
    room = (WIDTH - LEFT - RIGHT) / max(len(names), 1)
    width = min(room * 0.8 / len(kinds), 36.0)
    for number, name in enumerate(names):
        middle = LEFT + room * (number + 0.5)
        if len(names) <= 16 or number % 4 == 0:
            drawing.text(middle, bottom + 17, name, "tick middle")
        for place, kind in enumerate(kinds):
            if number < len(kind.shares):
                share = kind.shares[number]
                left = middle + width * (place - len(kinds) / 2)
                said = f"{kind.name}, {x_title} {name}: {percent(share)}"
                drawing.box(
                    left, bottom - height * share, width * 0.94, height * share, f"{kind.kind} fill", said
                )
                if width >= 30:
                    drawing.text(
                        left + width * 0.47, bottom - height * share - 4, percent(share), "value middle"
                    )
    drawing.text(WIDTH - RIGHT, HEIGHT - 5, x_title, "title end")
    drawing.text(2, 12, y_title, "title")
    return drawing.markup()
