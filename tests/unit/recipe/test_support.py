from __future__ import annotations

from typing import get_args

import pytest

from trtspec.recipe.methods import METHODS
from trtspec.recipe.schema import Backend
from trtspec.recipe.server_releases import SERVER_RELEASES, release_of
from trtspec.recipe.support import BACKENDS, SERVERS, SUPPORT


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
