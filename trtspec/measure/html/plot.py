"""Draws the plots of a report by matplotlib, and shares as bars in cells of tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

from markupsafe import Markup

from trtspec.base.picture import COLOURS, style
from trtspec.measure.html.document import Figure, LegendKey
from trtspec.measure.html.numbers import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = (400, 232)
"""The units of a plot, which a page scales with its width."""
_BAR = (120.0, 10.0)
"""The units of a bar in a cell."""
_ROOMY = 8
"""Up to this many points have room for two digits each."""
_CROWDED = 40.0
"""The ratio of the largest to the smallest value from which powers are easier to read than steps."""


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
    """The colour and, after a space, `tail` for a dashed line. The legend uses it too."""
    points: tuple[PlotPoint, ...]
    """In the order of their load."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one kind of share."""

    name: str
    kind: str
    """The colour."""
    shares: tuple[float, ...]
    """One share, 0 to 1, for each position."""


@dataclass(frozen=True, slots=True)
class Loads:
    """The measured loads, the lowest first, and the title of their axis."""

    title: str
    values: tuple[float, ...]
    are_whole: bool


class Plot:
    """Axes and what is drawn in them."""

    def __init__(self, words: str) -> None:
        """`words` are for screen readers."""
        from matplotlib.figure import Figure as Canvas

        width, height = _SIZE
        self._words, self._tooltips = words, dict[str, str]()
        self.canvas = Canvas((width / 72, height / 72), layout="constrained", facecolor="none")
        self.axes: Axes = self.canvas.subplots()
        self.axes.set_facecolor("none")
        self.axes.grid(visible=False, axis="x")

    def titles(self, x: str, y: str, beside: str = "") -> None:
        self.axes.set_xlabel(x, loc="right")
        self.axes.set_title(y, loc="left")
        self.axes.set_title(beside, loc="right")

    def loads(self, loads: Loads) -> None:
        """Gives each doubling of the load the same room, unless there are few loads."""
        from matplotlib.ticker import MaxNLocator, NullFormatter

        low, high = loads.values[0], loads.values[-1]
        if low == high:
            self.axes.set_xlim(low * 0.5, high * 1.5)
            self.axes.set_xticks([low])
        elif low > 0 and high / low >= 4:
            self.axes.set_xscale("log", base=2)
            self.axes.xaxis.set_minor_formatter(NullFormatter())
        else:
            self.axes.xaxis.set_major_locator(MaxNLocator("auto", integer=loads.are_whole))
        self.axes.xaxis.set_major_formatter("{x:g}")

    def line(self, line: Line) -> None:
        """Draws a line with the intervals of its points, and a tooltip for each point."""
        kind, _, dashed = line.kind.partition(" ")
        colour, xs, ys = COLOURS[kind], [one.x for one in line.points], [one.y for one in line.points]
        self.axes.plot(xs, ys, color=colour, linewidth=2, linestyle="--" if dashed else "-")
        for one in line.points:
            if one.low is not None and one.high is not None:
                ends = [[max(one.y - one.low, 0.0)], [max(one.high - one.y, 0.0)]]
                self.axes.errorbar([one.x], [one.y], yerr=ends, color=colour, capsize=4, linewidth=1.4)
            fill = COLOURS["paper"] if dashed else colour
            (dot,) = self.axes.plot([one.x], [one.y], "o", markersize=6, color=colour, markerfacecolor=fill)
            dot.set_gid(self.tooltip(one.words))

    def tooltip(self, words: str) -> str:
        """Returns the id of an element that shows these words."""
        gid = f"words-{len(self._tooltips)}"
        self._tooltips[gid] = words
        return gid

    def markup(self) -> Markup:
        """Returns the plot as an element of a page, which has the colours and the sizes of text."""
        with StringIO() as file:
            self.canvas.savefig(
                file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
            )
            svg = fromstring(file.getvalue())  # noqa: S314  # It is matplotlib's own.
        for element in svg.iter():
            _embed(element, self._tooltips)
        root = _svg(*_SIZE, self._words)
        root.extend(element for element in svg if element.tag != "defs" or element.find("style") is None)
        # Every text and attribute has been escaped by ElementTree.
        return Markup(tostring(root, encoding="unicode"))  # noqa: S704


def _embed(element: Element, tooltips: Mapping[str, str]) -> None:
    """Takes from an element of matplotlib's what a page has itself: namespaces, ids, colours, fonts."""
    element.tag = element.tag.rpartition("}")[2]
    names = {name: name.rpartition("}")[2] for name in element.attrib}
    attributes = {names[name]: value for name, value in element.attrib.items()}
    gid = attributes.pop("id", "") if element.tag == "g" else ""
    if rules := attributes.get("style"):
        if element.tag == "text":
            rules = re.sub(r"font(-size|-family)?:[^;]*(;|$)", "", rules)
        for name, colour in COLOURS.items():
            rules = rules.replace(colour, f"var(--{name})")
        attributes["style"] = rules.strip()
    element.attrib.clear()
    element.attrib.update(attributes)
    if gid in tooltips:
        title = Element("title")
        title.text = tooltips[gid]
        element.insert(0, title)


def _svg(width: float, height: float, words: str) -> Element:
    size = f"0 0 {width:g} {height:g}"
    return Element("svg", {"viewBox": size, "role": "img", "aria-label": words, "class": "plot"})


@contextmanager
def plotted(words: str) -> Iterator[Plot]:
    """Gives a plot in the style of all pictures."""
    with style():
        yield Plot(words)


def amounts(words: str, lines: Iterable[Line], loads: Loads, unit: str) -> Figure:
    """Returns the plot of amounts by load with its legend, without lines that have no points."""
    from matplotlib.ticker import EngFormatter

    lines = [line for line in lines if line.points]
    positive = [point.y for line in lines for point in line.points if point.y > 0]
    with plotted(words) as plot:
        for line in lines:
            plot.line(line)
        plot.loads(loads)
        if positive and max(positive) / min(positive) >= _CROWDED:
            plot.axes.set_yscale("log")
        else:
            plot.axes.set_ylim(bottom=0)
        plot.axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        plot.titles(loads.title, unit)
        return Figure(plot.markup(), tuple(LegendKey(line.kind, line.name) for line in lines))


def ratios(
    words: str,
    line: Line,
    loads: Loads,
    meaning: str,
    mark: tuple[float, str] | None,
    single: Sequence[PlotPoint],
) -> Markup:
    """Returns the plot of ratios by load; `meaning` is that of a point above or below 1.

    `mark` is a load with its words. `single` are single observations behind the line.
    """
    from matplotlib.transforms import offset_copy

    with plotted(words) as plot:
        axes = plot.axes
        places = [(one.x, one.y) for one in single]
        if places:
            # They are beside the interval of the same load, which would hide them.
            beside = offset_copy(axes.transData, plot.canvas, x=-9, units="points")
            xs, ys = zip(*places, strict=True)
            axes.scatter(xs, ys, s=10, color=COLOURS["soft"], alpha=0.75, linewidths=0, transform=beside)
            axes.update_datalim(places)
        plot.line(line)
        for one in line.points:
            said = f"{one.y:.2f}x" if len(line.points) <= _ROOMY else f"{one.y:.1f}x"
            top = one.high if one.high is not None else one.y
            axes.annotate(said, (one.x, top), (0, 6), textcoords="offset points", ha="center", weight="bold")
        plot.loads(loads)
        axes.axhline(1, color=COLOURS["ink"], linewidth=1.2)
        axes.margins(y=0.15)
        low, high = axes.get_ylim()
        axes.axhspan(1, high, color=COLOURS["better-tint"], zorder=0)
        axes.axhspan(low, 1, color=COLOURS["worse-tint"], zorder=0)
        axes.set_ylim(max(low, 0), high)
        if mark:
            axes.axvline(mark[0], color=COLOURS["ink"], linewidth=1, linestyle=":")
            axes.annotate(mark[1], (mark[0], 0.06), (4, 0), ("data", "axes fraction"), "offset points")
        axes.yaxis.set_major_formatter("{x:g}x")
        plot.titles(loads.title, line.name, meaning)
        return plot.markup()


def columns(words: str, kinds: Sequence[Columns], names: Sequence[str], x: str, y: str) -> Markup:
    """Returns the plot of shares; `names` are those of the positions."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    width = 0.8 / len(kinds)
    with plotted(words) as plot:
        for place, kind in enumerate(kinds):
            offset = (place - (len(kinds) - 1) / 2) * width
            spots = [number + 1 + offset for number in range(len(kind.shares))]
            bars = plot.axes.bar(spots, kind.shares, width * 0.94, color=COLOURS[kind.kind])
            for bar, name, share in zip(bars, names, kind.shares, strict=False):
                bar.set_gid(plot.tooltip(f"{kind.name}, {x} {name}: {percent(share)}"))
            if len(names) * len(kinds) <= _ROOMY:
                plot.axes.bar_label(bars, [percent(share) for share in kind.shares], weight="bold")
        plot.axes.set_ylim(0, 1)
        plot.axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        plot.axes.yaxis.set_major_formatter(PercentFormatter(1))
        plot.titles(x, y)
        return plot.markup()


def bar(shares: Sequence[tuple[str, float]], words: str) -> Markup:
    """Returns a bar for a cell of a table: parts with their style classes, at most 1 together."""
    width, height = _BAR
    svg = _svg(width, height, words)
    SubElement(svg, "title").text = words
    parts, left = [("empty", 0.0, 1.0)], 0.0
    for kind, share in shares:
        parts.append((f"{kind} fill", left, share))
        left += share
    for kind, start, share in parts:
        place = {"x": f"{width * start:.1f}", "width": f"{width * share:.1f}", "height": f"{height:g}"}
        SubElement(svg, "rect", {**place, "class": kind})
    # Every text and attribute has been escaped by ElementTree.
    return Markup(tostring(svg, encoding="unicode"))  # noqa: S704
