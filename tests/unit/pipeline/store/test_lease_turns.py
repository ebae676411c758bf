"""Builders in every order, on a file system that cannot create a file exclusively, some very slow."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.turns import Turns
from tests.unit.pipeline.store.conftest import H200
from trtspec.base.progress import no_progress
from trtspec.pipeline.store import lease as room
from trtspec.pipeline.store.files import Files
from trtspec.pipeline.store.store import Store

BUILDERS = 4


def in_turns(turns: Turns, function: Callable[..., Any]) -> Callable[..., Any]:
    """Time passes, and others run, before the request arrives and before its answer does."""

    def call(*args: Any) -> Any:
        turns.sleep(0)
        result = function(*args)
        turns.sleep(0)
        return result

    return call


@pytest.mark.parametrize("seed", range(60))
def test_never_two_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(seed, longest=4 * room.SETTLE_S)
    monkeypatch.setattr(room, "time", turns)
    monkeypatch.setattr(room, "EXPIRY_S", float("inf"))
    url = f"memory://{uuid.uuid4().hex}"
    held, at_work = list[int](), set[int]()

    def builder(number: int) -> Callable[[], None]:
        def build() -> None:
            store = Store(url)
            lease = room._wait(store, H200, "1" * 64, "target", no_progress)
            assert lease
            assert not at_work, "two build"
            at_work.add(number)
            for _ in range(10):
                turns.sleep(0)
            at_work.remove(number)
            held.append(number)
            lease._write(released=True)

        return build

    stores = ("find", "read", "write", "remove")
    for name in stores:
        monkeypatch.setattr(Files, name, in_turns(turns, getattr(Files, name)))
    turns.run([builder(number) for number in range(BUILDERS)])
    assert sorted(held) == list(range(BUILDERS))
