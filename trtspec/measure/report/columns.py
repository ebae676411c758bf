"""Plots shares by position: one column for each, side by side for several kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from trtspec.measure.report.drawing import Drawing
from trtspec.measure.report.lines import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from trtspec.measure.report.numbers import percent


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one kind of share."""

    name: str
    kind: str
    """The style class."""
    shares: tuple[float, ...]
    """One share, 0 to 1, for each position."""


def draw(words: str, kinds: Sequence[Columns], names: Sequence[str], x_title: str, y_title: str) -> Markup:
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
        for place, columns in enumerate(kinds):
            if number < len(columns.shares):
                share = columns.shares[number]
                left = middle + width * (place - len(kinds) / 2)
                said = f"{columns.name}, {x_title} {name}: {percent(share)}"
                drawing.box(
                    left, bottom - height * share, width * 0.94, height * share, f"{columns.kind} fill", said
                )
                if width >= 30:
                    drawing.text(
                        left + width * 0.47, bottom - height * share - 4, percent(share), "value middle"
                    )
    drawing.text(WIDTH - RIGHT, HEIGHT - 5, x_title, "title end")
    drawing.text(2, 12, y_title, "title")
    return drawing.markup()
