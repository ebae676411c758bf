"""Draws bars in a table's cells: a share, or the parts of a whole."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from trtspec.measure.report.drawing import Drawing

_WIDTH, _HEIGHT = 120.0, 10.0


def share(value: float, kind: str, words: str, low: float | None = None, high: float | None = None) -> Markup:
    """Returns the bar of a share of 1, with its interval if there is one."""
    drawing = Drawing(_WIDTH, _HEIGHT, words)
    drawing.box(0, 0, _WIDTH, _HEIGHT, "empty")
    drawing.box(0, 0, _WIDTH * value, _HEIGHT, f"{kind} fill", words)
    if low is not None and high is not None:
        drawing.line(_WIDTH * low, _HEIGHT / 2, _WIDTH * high, _HEIGHT / 2, "interval")
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
