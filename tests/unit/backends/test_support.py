"""What backends say of themselves."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import trtspec.backends
from tests.support.servers_of_others import SERVERS, server_named
from trtspec.backends.table import backend_named, backends
from trtspec.methods.table import METHODS
from trtspec.recipe.backends import NAMES


def test_a_backend_is_its_folder() -> None:
    assert [backend.name for backend in backends()] == list(NAMES)
    folders = Path(trtspec.backends.__path__[0])
    assert {path.parent.name for path in folders.glob("*/backend.py")} == set(NAMES)
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


def test_the_releases_that_run_a_method_are_some_of_the_backends_and_not_all() -> None:
    for backend in backends():
        for cell in backend.methods.values():
            if cell and cell.releases:
                assert set(cell.releases) < set(backend.versions)


def test_a_release_runs_a_method_that_the_default_has_not() -> None:
    assert backend_named("vllm").refusal("medusa", "0.32.0") is None
    for release in ("0.33.0", None):
        found = backend_named("vllm").refusal("medusa", release)
        assert found
        assert found.releases == ("0.32.0",)


@pytest.mark.parametrize("backend", SERVERS)
def test_the_default_release_of_a_server_is_the_newest(backend: str) -> None:
    server = server_named(backend)
    newest = max(server.releases, key=lambda release: [int(number) for number in release.version.split(".")])
    assert server.release_of(None) is newest
    assert all(release.version in release.image for release in server.releases)
