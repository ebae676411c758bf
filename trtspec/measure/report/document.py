"""Writes a report as one HTML file that loads nothing and runs nothing."""

from __future__ import annotations

from importlib.metadata import version as installed
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from trtspec.base.atomic import write_atomically
from trtspec.measure.report.section import Page

_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_UNSEEN = {
    code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0), *_BIDI) if chr(code) not in "\n\t"
}
"""Characters that HTML forbids, or that reverse the order of text."""


def write_report(page: Page, file: Path) -> Path:
    """Writes the report, whole or not at all, and returns the file."""
    write_atomically(file, as_html(page))
    return file


def as_html(page: Page) -> str:
    """Returns the whole file. Everything from a result is escaped."""
    here = files("trtspec.measure.report")
    environment = Environment(autoescape=True, trim_blocks=True)
    template = environment.from_string(here.joinpath("page.html.j2").read_text(encoding="utf-8"))
    style = Markup(here.joinpath("style.css").read_text(encoding="utf-8"))  # noqa: S704
    text = template.render(page=page, style=style, version=installed("trtspec"))
    return text.translate(_UNSEEN).encode("utf-8", "backslashreplace").decode("utf-8")
