from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trtspec.cluster.jobs import PendingBuild, look
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.store.store import Store

Look = Callable[..., PendingBuild]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def wanted(tmp_path: Path, store: Store) -> Look:
    """What the store lacks of a recipe whose build directory is `build/<name>`."""

    def of(recipe: Path, name: str = "pair") -> PendingBuild:
        return look(store, make_plan(recipe, output=tmp_path / "build" / name, store=store))

    return of
