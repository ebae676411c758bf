"""Defines the sections of a report: each has plots, and tables of the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup


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
