from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from trtspec.methods.table import METHODS
from trtspec.recipe.schema import Backend
from trtspec.recipe.server_releases import SERVER_RELEASES, release_of
from trtspec.recipe.support import BACKENDS, SERVERS, SUPPORT, refusal


def test_the_table_has_every_method_and_every_backend() -> None:
    assert set(SUPPORT) == set(METHODS)
    assert set(BACKENDS) == set(get_args(Backend))
    assert [method for method, cells in SUPPORT.items() if set(cells) != set(BACKENDS)] == []


def test_a_refusal_says_why_and_where_that_can_be_seen() -> None:
    refused = [cell for cells in SUPPORT.values() for cell in cells.values() if cell]
    assert refused
    assert all(cell.reason and cell.source for cell in refused)


@pytest.mark.parametrize("backend", SERVERS)
def test_the_default_release_of_a_server_is_the_newest(backend: str) -> None:
    releases = SERVER_RELEASES[backend].values()
    newest = max(releases, key=lambda release: [int(number) for number in release.version.split(".")])
    assert release_of(backend, None) is newest
    assert all(release.version in release.image for release in releases)


README = Path(__file__).parents[3] / "README.md"
BEGIN, END = "<!-- methods: written by tests/unit/recipe/test_support.py -->", "<!-- /methods -->"


def table() -> str:
    """The table of methods and backends as Markdown, with its reasons below, each of them once."""
    notes: dict[tuple[str, str], int] = {}
    lines = [
        f"| method | {' | '.join(f'`{name}`' for name in BACKENDS)} |",
        "|---" * (len(BACKENDS) + 1) + "|",
    ]
    for method in METHODS:
        shown = []
        for backend in BACKENDS:
            cell = refusal(method, backend)
            note = (cell.reason, cell.source) if cell else None
            shown.append(f"no ({notes.setdefault(note, len(notes) + 1)})" if note else "yes")
        lines.append(f"| `{method}` | {' | '.join(shown)} |")
    reasons = [f"{number}. {reason} ({source})" for (reason, source), number in notes.items()]
    return "\n".join([*lines, "", *reasons])


def test_the_readme_has_the_table() -> None:
    """UPDATE_GOLDEN=1 writes it anew."""
    text = README.read_text()
    before, rest = text.split(BEGIN)
    found, after = rest.split(END)
    if os.environ.get("UPDATE_GOLDEN"):
        found = f"\n{table()}\n"
        README.write_text(f"{before}{BEGIN}{found}{END}{after}")
    assert found == f"\n{table()}\n"
