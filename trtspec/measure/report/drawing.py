"""Draws SVG inside a page. Text is escaped, since it is only added through elements."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup


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
        box = self._add("rect", kind, x=_at(x), y=_at(y), width=_at(width), height=_at(height))
        _explain(box, words)

    def dot(self, x: float, y: float, radius: float, kind: str, words: str = "") -> None:
        """Draws a circle; `words` are its tooltip."""
        _explain(self._add("circle", kind, cx=_at(x), cy=_at(y), r=_at(radius)), words)

    def text(self, x: float, y: float, words: str, kind: str) -> None:
        self._add("text", kind, x=_at(x), y=_at(y)).text = words

    def markup(self) -> Markup:
        # Every text and attribute has been escaped by ElementTree.
        return Markup(tostring(self._svg, encoding="unicode"))  # noqa: S704

    def _add(self, tag: str, kind: str, **attributes: str) -> Element:
        return SubElement(self._svg, tag, {**attributes, "class": kind})


def _explain(element: Element, words: str) -> None:
    if words:
        SubElement(element, "title").text = words


def _at(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
