"""What is removed, and above all what is not."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tests.unit.pipeline.store.conftest import H200, entry_of
from trtspec.base.errors import StoreError
from trtspec.base.progress import no_progress
from trtspec.pipeline.store import upkeep as room
from trtspec.pipeline.store.files import Files, Stat
from trtspec.pipeline.store.store import Entry, Store, to_bytes
from trtspec.pipeline.store.transfer import push
from trtspec.pipeline.store.upkeep import Prune, PruneRules, choose, exclusively, prune, verify

DAY = timedelta(days=1)
NOTHING = PruneRules(None, None, DAY)
NOW = datetime(2026, 1, 31, tzinfo=timezone.utc)


def silent(*_: object) -> None: ...


def later(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """Everything in a store is older by so much."""
    find = Files.find

    def aged(self: Files, folder: str) -> dict[str, Stat]:
        found = find(self, folder)
        return {
            name: replace(stat, modified=stat.modified and stat.modified - by) for name, stat in found.items()
        }

    monkeypatch.setattr(Files, "find", aged)


def at_day(day: int, **values: Any) -> Entry:
    entry = Entry("target", "llama", H200, "1" * 64, f"2026-01-{day:02}T00:00:00+00:00", {}, (), {})
    return replace(entry, **values)


class TestChoice:
    ENTRIES = tuple(at_day(day) for day in (30, 20, 10, 1))

    def days(self, older_than: int | None, keep: int | None) -> list[int]:
        rules = PruneRules(None if older_than is None else older_than * DAY, keep, DAY)
        return [datetime.fromisoformat(entry.created).day for entry in choose(self.ENTRIES, rules, NOW)]

    def test_without_a_rule_nothing_goes(self) -> None:
        assert self.days(None, None) == []

    def test_by_age(self) -> None:
        assert self.days(15, None) == [10, 1]
        assert self.days(0, None) == [30, 20, 10, 1]

    def test_by_count(self) -> None:
        assert self.days(None, 1) == [20, 10, 1]

    def test_pruning_by_age_spares_the_newest_entries_that_are_to_be_kept(self) -> None:
        assert self.days(15, 3) == [1]
        assert self.days(5, 1) == [20, 10, 1]

    def test_each_kind_is_counted_on_its_own(self) -> None:
        others = [at_day(1, role="draft"), at_day(1, name="qwen"), at_day(1, platform=replace(H200, sm=89))]
        assert choose([*self.ENTRIES, *others], PruneRules(None, 4, DAY), NOW) == []


def test_a_store_that_is_needed_stays(store: Store, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push(store, entry_of(engine), engine, silent)
    later(monkeypatch, 100 * DAY)
    assert prune(store, NOTHING, silent, dry_run=False) == Prune((), (), 0)
    assert not verify(store, no_progress).findings


def test_an_entry_goes_with_what_only_it_needs(store: Store, engine: Path) -> None:
    old = entry_of(engine)
    push(store, old, engine, silent)
    (engine / "config.json").write_text("{}")
    new = entry_of(engine, created=datetime.now(timezone.utc).isoformat())
    push(store, new, engine, silent)
    rules = PruneRules(DAY, None, DAY)
    before = store.files.find("")
    told = prune(store, rules, silent, dry_run=True)
    assert store.files.find("").keys() == before.keys()
    assert told.entries == (old,)
    gone = old.files["config.json"].chunks[0]
    # What the entry alone needs is named only once the entry is not needed.
    assert told == prune(store, rules, silent, dry_run=False) == Prune((old,), (gone.name,), gone.size)
    assert before.keys() - store.files.find("").keys() == {old.document, gone.name}
    assert store.entries() == [new]
    assert not verify(store, no_progress).findings


class Folders(MemoryFileSystem):  # type: ignore[misc]
    """A file system that fsspec lists folder by folder, as sftp and smb."""

    protocol = "folders"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    find = AbstractFileSystem.find


@pytest.fixture(params=["file", "folders"])
def of_folders(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    fsspec.register_implementation("folders", Folders, clobber=True)
    return Store(f"{request.param}://{tmp_path}/store")


def not_listed(monkeypatch: pytest.MonkeyPatch, name: str, error: OSError) -> None:
    """Has whoever lists a folder of this name get the error."""

    def refusing(lists: Callable[..., Any]) -> Callable[..., Any]:
        def listed(*path: Any, **options: Any) -> Any:
            if str(path[-1]).endswith(name):
                raise error
            return lists(*path, **options)

        return listed

    monkeypatch.setattr(os, "scandir", refusing(os.scandir))
    monkeypatch.setattr(Folders, "ls", refusing(Folders.ls))


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    of_folders: Store, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, entry = of_folders, entry_of(engine)
    push(store, entry, engine, silent)
    with monkeypatch.context() as refused:
        not_listed(refused, entry.key, PermissionError(errno.EACCES, "Permission denied"))
        for looks in (store.entries, partial(store.find, H200, entry.key)):
            with pytest.raises(StoreError, match="Permission denied"):
                looks()
        with pytest.raises(StoreError, match="Permission denied"):
            prune(store, NOTHING, silent, dry_run=False)
    assert store.entries() == [entry]
    assert not verify(store, no_progress).findings


def test_a_folder_that_vanishes_while_it_is_listed_is_empty(
    of_folders: Store, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, entry = of_folders, entry_of(engine)
    push(store, entry, engine, silent)
    not_listed(monkeypatch, entry.key, FileNotFoundError(errno.ENOENT, "No such file or directory"))
    assert store.entries() == []


def test_the_remains_of_a_killed_push_are_pruned_only_after_a_while(
    store: Store, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = entry_of(engine)
    chunk = next(iter(entry.chunks))
    store.files.write(f"pushing/{entry.digest}.json", to_bytes(entry))
    store.files.write(chunk.name, b"x" * chunk.size)
    assert prune(store, NOTHING, silent, dry_run=False).names == ()
    later(monkeypatch, 2 * DAY)
    assert prune(store, NOTHING, silent, dry_run=False).names == (f"pushing/{entry.digest}.json", chunk.name)
    assert store.files.find("") == {}


def test_pruning_spares_files_that_are_not_the_stores(
    tmp_path: Path, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may be in a folder that has a `tmp` and `objects` of its own."""
    store = Store(str(tmp_path / "work"))
    theirs = [
        "tmp/thesis.docx",
        "objects/pack/pack-1.pack",
        "entries/readme.txt",
        "pushing/cart.json",
        "notes",
    ]
    theirs += ["building/site/plan/1.pdf", f"objects/sha256/ab/{'cd' * 32}", f"tmp/{'a' * 31}"]
    for name in theirs:
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).write_text(name)
    push(store, entry_of(engine), engine, silent)
    store.files.write("tmp/" + "a" * 32, b"of a push that was killed")
    later(monkeypatch, 100 * DAY)
    found = verify(store, no_progress)
    assert found.findings == ()
    room.drop(store, found)
    gone = prune(store, PruneRules(timedelta(0), None, DAY), silent, dry_run=False)
    assert len(gone.entries) == 1
    prune(store, NOTHING, silent, dry_run=False)
    assert store.files.find("").keys() == set(theirs)


def test_a_push_that_uses_an_object_nobody_else_needs(
    store: Store, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The push finds the object before the prune has looked, and is done after it."""
    entry = entry_of(engine)
    push(store, entry, engine, silent)
    store.files.remove([entry.document])
    pruned: list[bool] = []
    size = Files.size

    def size_then_prune(self: Files, name: str) -> int | None:
        found = size(self, name)
        if not pruned:
            pruned.append(True)
            later(monkeypatch, timedelta(hours=23))
            prune(Store(store.address.url), NOTHING, silent, dry_run=False)
            monkeypatch.undo()
        return found

    monkeypatch.setattr(Files, "size", size_then_prune)
    push(store, entry, engine, silent)
    assert pruned
    assert not verify(store, no_progress).findings


def test_a_push_that_takes_long_renews_its_mark(
    store: Store, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, names, write = entry_of(engine), list[str](), Files.write

    def note(self: Files, name: str, content: bytes) -> None:
        write(self, name, content)
        names.append(name)

    monkeypatch.setattr("trtspec.pipeline.store.transfer.THREADS", 1)
    monkeypatch.setattr("trtspec.pipeline.store.transfer._RENEWAL_S", -1)
    monkeypatch.setattr(Files, "write", note)
    push(store, entry, engine, silent)
    mark = f"pushing/{entry.digest}.json"
    assert names.count(mark) == len(entry.chunks) + 1
    assert store.files.size(mark) is None


def test_a_push_whose_mark_a_prune_has_removed_fails(store: Store, engine: Path) -> None:
    entry = entry_of(engine)

    def advance(*_: object) -> None:
        store.files.remove([f"pushing/{entry.digest}.json"])
        prune(store, NOTHING, silent, dry_run=False)

    with pytest.raises(StoreError, match="a prune took it for dead"):
        push(store, entry, engine, advance)
    assert store.entries() == []
    push(store, entry, engine, silent)
    assert not verify(store, no_progress).findings


def test_a_push_succeeds_when_a_rival_push_has_removed_its_mark(store: Store, engine: Path) -> None:
    entry = entry_of(engine)
    rival: list[bool] = []

    def advance(*_: object) -> None:
        if not rival:
            rival.append(True)
            push(Store(store.address.url), entry, engine, silent)

    push(store, entry, engine, advance)
    assert store.entries() == [entry]
    assert not verify(store, no_progress).findings


def test_a_push_waits_for_a_prune(store: Store, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prune has looked, and will remove an object that the push is about to find."""
    entry = entry_of(engine)
    push(store, entry, engine, silent)
    store.files.remove([entry.document])
    waits, notes = threading.Event(), []
    monkeypatch.setattr("trtspec.pipeline.store.transfer._POLL_S", 0.01)

    def advance(amount: int, note: str = "") -> None:
        notes.append(note)
        waits.set()

    pushing = threading.Thread(target=push, args=(store, entry, engine, advance))
    with exclusively(Store(store.address.url)) as remove:
        doomed = [chunk.name for chunk in entry.chunks]
        pushing.start()
        assert waits.wait(120)
        assert store.entries() == []
        remove(doomed, silent)
    pushing.join(120)
    assert notes[0] == "waits for the end of a prune"
    assert not verify(store, no_progress).findings
    assert store.entries() == [entry]


def test_a_prune_that_was_killed_holds_up_nobody_for_long(
    store: Store, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.files.write("pruning/dead", b"")
    later(monkeypatch, timedelta(hours=2))
    push(store, entry_of(engine), engine, silent)
    assert len(store.entries()) == 1


def test_a_prune_that_was_held_up_removes_nothing(
    store: Store, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(store, entry_of(engine), engine, silent)
    clock = iter((0.0, 3600.0))
    with exclusively(store) as _:
        pass
    monkeypatch.setattr(room, "monotonic", lambda: next(clock))
    with pytest.raises(StoreError, match="took so long"):
        prune(store, PruneRules(timedelta(0), None, DAY), silent, dry_run=False)
    assert len(store.entries()) == 1
    assert store.files.find("pruning") == {}
