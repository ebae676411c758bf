"""Defines a report, and writes it as one HTML file that loads nothing and runs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version as installed
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from trtspec.base.files import write_atomically

_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_UNSEEN = {
    code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0), *_BIDI) if chr(code) not in "\n\t"
}
"""Characters that HTML forbids, or that reverse the order of text."""


@dataclass(frozen=True, slots=True)
class LegendKey:
    """A line of a legend: the meaning of a kind of line, dot or column."""

    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """A cell is text, which the page escapes, or a drawing."""
    names: int = 1
    """The number of columns, from the first, that hold words. The others hold numbers, which are aligned to
    the right.
    """
    keys: tuple[LegendKey, ...] = ()
    """The legend of the drawings in the table."""
    note: str = ""

    @property
    def groups(self) -> list[list[tuple[str, ...]]]:
        """The rows, grouped by the same first cell."""
        return [list(rows) for _, rows in groupby(self.rows, lambda row: row[0])]


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot with its legend, which is empty if the plot needs none."""

    plot: Markup
    keys: tuple[LegendKey, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A part of the report: its title, what it shows in a sentence, plots and tables of it."""

    title: str
    finding: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True)
class Tile:
    """A prominent number, with its meaning."""

    name: str
    value: str
    words: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report."""

    title: str
    subject: str
    tone: str
    """The verdict's tone: good, mixed, bad or open."""
    verdict: str
    because: str
    advice: tuple[str, ...]
    hero: Figure | None
    tiles: tuple[Tile, ...]
    sections: tuple[ReportSection, ...]
    facts: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    command: str = ""
    warnings: tuple[str, ...] = ()
    advice_title: str = "What to do"


def write_report(page: Page, file: Path) -> Path:
    """Writes the report, whole or not at all, and returns the file."""
    write_atomically(file, as_html(page))
    return file


def as_html(page: Page) -> str:
    """Returns the whole file. Everything from a result is escaped."""
    here = files("trtspec.measure.html")
    environment = Environment(autoescape=True, trim_blocks=True)
    template = environment.from_string(here.joinpath("page.html.j2").read_text(encoding="utf-8"))
    style = Markup(here.joinpath("style.css").read_text(encoding="utf-8"))  # noqa: S704
    text = template.render(page=page, style=style, version=installed("trtspec"))
    return text.translate(_UNSEEN).encode("utf-8", "backslashreplace").decode("utf-8")
