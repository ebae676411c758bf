"""The table of methods and backends in the README, and what backends say of themselves."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

import trtspec.backends
from tests.servers_of_others import SERVERS, server_named
from trtspec.backends.table import NAMES, backend_named, backends
from trtspec.methods.table import METHODS


def test_a_backend_is_its_folder() -> None:
    assert [backend.name for backend in backends()] == list(NAMES)
    folders = Path(trtspec.backends.__path__[0])
    assert {path.parent.name for path in folders.glob("*/backend.py")} == {*NAMES, "built", "served"}
    for name in NAMES:
        assert import_module(f"trtspec.backends.{name}.backend").BACKEND is backend_named(name)


def test_a_backend_that_is_in_no_table_is_none() -> None:
    with pytest.raises(KeyError, match="abacus"):
        backend_named("abacus")


@pytest.mark.parametrize("backend", NAMES)
def test_every_method_is_run_or_refused(backend: str) -> None:
    assert set(backend_named(backend).methods) == set(METHODS)


def test_a_refusal_says_why_and_where_that_can_be_seen() -> None:
    refused = [cell for backend in backends() for cell in backend.methods.values() if cell]
    assert refused
    assert all(cell.reason and cell.source for cell in refused)


@pytest.mark.parametrize("backend", SERVERS)
def test_the_default_release_of_a_server_is_the_newest(backend: str) -> None:
    server = server_named(backend)
    newest = max(server.releases, key=lambda release: [int(number) for number in release.version.split(".")])
    assert server.release_of(None) is newest
    assert all(release.version in release.image for release in server.releases)


README = Path(__file__).parents[3] / "README.md"
BEGIN, END = "<!-- methods: written by tests/unit/backends/test_support.py -->", "<!-- /methods -->"


def table() -> str:
    """The table of methods and backends as Markdown, with its reasons below, each of them once."""
    notes: dict[tuple[str, str], int] = {}
    lines = [
        f"| method | {' | '.join(f'`{name}`' for name in NAMES)} |",
        "|---" * (len(NAMES) + 1) + "|",
    ]
    for method in METHODS:
        shown = []
        for backend in backends():
            cell = backend.refusal(method, None)
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
