"""Draws SVG inside a page, and shares as bars: in cells of tables, and in columns of a plot.

Text is escaped, since it is only added through elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup

from trtspec.measure.report.numbers import percent

WIDTH, HEIGHT = 400.0, 232.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 26.0, 40.0
"""The sizes of a plot, and the room around it for words."""
_WIDTH, _HEIGHT = 120.0, 10.0
"""The size of a bar in a cell."""


class Drawing:
    """A picture of a given size in units; the page's style classes set colours and text sizes."""

    def __init__(self, width: float, height: float, words: str) -> None:
        """`words` are for screen readers."""
        self._svg = Element(
            "svg",
            {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": words, "class": "plot"},
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self._add("line", kind, x1=_at(x1), y1=_at(y1), x2=_at(x2), y2=_at(y2))

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        steps = " ".join(f"{'L' if number else 'M'}{_at(x)} {_at(y)}" for number, (x, y) in enumerate(points))
        self._add("path", kind, d=steps)

    def box(self, x: float, y: float, width: float, height: float, kind: str, words: str = "") -> None:
        self._add("rect", kind, words, x=_at(x), y=_at(y), width=_at(width), height=_at(height))

    def dot(self, x: float, y: float, radius: float, kind: str, words: str = "") -> None:
        """Draws a circle; `words` are its tooltip."""
        self._add("circle", kind, words, cx=_at(x), cy=_at(y), r=_at(radius))

    def text(self, x: float, y: float, words: str, kind: str) -> None:
        self._add("text", kind, x=_at(x), y=_at(y)).text = words

    def markup(self) -> Markup:
        # Every text and attribute has been escaped by ElementTree.
        return Markup(tostring(self._svg, encoding="unicode"))  # noqa: S704

    def _add(self, tag: str, kind: str, words: str = "", **attributes: str) -> Element:
        element = SubElement(self._svg, tag, {**attributes, "class": kind})
        if words:
            SubElement(element, "title").text = words
        return element


def _at(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


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
                top = bottom - height * share
                drawing.box(left, top, width * 0.94, height * share, f"{kind.kind} fill", said)
                if width >= 30:
                    drawing.text(left + width * 0.47, top - 4, percent(share), "value middle")
    drawing.text(WIDTH - RIGHT, HEIGHT - 5, x_title, "title end")
    drawing.text(2, 12, y_title, "title")
    return drawing.markup()
