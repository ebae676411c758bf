"""What goes in comes out, on every file system; what is not as it was written is refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pipeline.store.conftest import H200, entry_of, tree
from trtspec.base.errors import CorruptedError, StoreError
from trtspec.base.progress import no_progress
from trtspec.pipeline.store.store import Platform, Store, from_bytes, to_bytes
from trtspec.pipeline.store.transfer import pull, push
from trtspec.pipeline.store.upkeep import drop, verify


def silent(*_: object) -> None: ...


def written(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are written from now on."""
    names: list[str] = []
    write = store.files.write

    def note(name: str, content: bytes) -> None:
        names.append(name)
        write(name, content)

    monkeypatch.setattr(store.files, "write", note)
    return names


def test_an_entry_pushed_to_a_store_is_found_and_pulled_unchanged(
    store: Store, engine: Path, tmp_path: Path
) -> None:
    entry = entry_of(engine)
    assert store.find(H200, entry.key) is None
    assert store.entries() == []
    push(store, entry, engine, silent)
    other = Store(store.address.url)
    assert other.find(H200, entry.key) == entry
    assert other.entries() == [entry]
    pull(other, entry, tmp_path / "pulled", silent)
    assert tree(tmp_path / "pulled") == tree(engine)
    assert sorted({name.split("/")[0] for name in store.files.find("")}) == ["entries", "objects"]


def test_progress_counts_every_byte(store: Store, engine: Path, tmp_path: Path) -> None:
    entry, sent, got = entry_of(engine), list[int](), list[int]()
    push(store, entry, engine, lambda amount, note="": sent.append(amount))
    pull(store, entry, tmp_path / "pulled", lambda amount, note="": got.append(amount))
    assert sum(sent) == sum(chunk.size for chunk in entry.chunks)
    assert sum(got) == entry.size == sum(file.stat().st_size for file in engine.iterdir() if file.is_file())


@pytest.mark.parametrize(
    "platform",
    [
        replace(H200, sm=89),
        replace(H200, tensorrt="10.13.3.9"),
        replace(H200, tensorrt_llm="1.2.0"),
        Platform("torch"),
    ],
)
def test_an_engine_of_another_platform_is_not_found(store: Store, engine: Path, platform: Platform) -> None:
    entry = entry_of(engine)
    push(store, entry, engine, silent)
    assert store.find(platform, entry.key) is None
    assert store.find(H200, "2" * 64) is None


def test_an_entry_that_was_moved_to_another_platform_is_refused(store: Store, engine: Path) -> None:
    entry = entry_of(engine)
    push(store, entry, engine, silent)
    moved = entry.document.replace("sm90", "sm89")
    store.files.write(moved, to_bytes(entry))
    with pytest.raises(CorruptedError, match="another platform or key"):
        store.find(replace(H200, sm=89), entry.key)


def test_a_push_writes_only_the_chunks_that_changed(
    store: Store, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(store, entry_of(engine), engine, silent)
    names = written(store, monkeypatch)
    (engine / "config.json").write_text("{}")
    entry = entry_of(engine, key="2" * 64)
    push(store, entry, engine, silent)
    changed = entry.files["config.json"].chunks[0].name
    assert names == [f"pushing/{entry.digest}.json", changed, entry.document]


def test_two_that_made_the_same_engine_both_stay_and_all_see_the_first(store: Store, engine: Path) -> None:
    first = entry_of(engine, created="2026-01-01T00:00:00+00:00")
    (engine / "rank1.engine").write_bytes(b"TensorRT never builds the same twice")
    second = entry_of(engine, created="2026-01-01T00:00:01+00:00")
    push(store, second, engine, silent)
    (engine / "rank1.engine").write_bytes(bytes(range(256)) * 40 + b"another end")
    push(store, first, engine, silent)
    assert store.find(H200, first.key) == first
    assert store.entries() == [second, first]
    assert not verify(store, no_progress).findings


def test_a_file_that_changes_while_it_is_pushed_is_refused(store: Store, engine: Path) -> None:
    entry = entry_of(engine)
    (engine / "rank1.engine").write_bytes(b"x" * 10300)
    with pytest.raises(StoreError, match="changed during the push"):
        push(store, entry, engine, silent)
    assert store.entries() == []


class TestCorruption:
    @pytest.fixture
    def pushed(self, store: Store, engine: Path) -> Store:
        push(store, entry_of(engine), engine, silent)
        return store

    @pytest.mark.parametrize("damage", ["other", "shorter", "gone"])
    def test_a_corrupted_object_is_found_dropped_and_pushed_again(
        self, pushed: Store, engine: Path, tmp_path: Path, damage: str
    ) -> None:
        entry = pushed.entries()[0]
        chunk = entry.files["rank1.engine"].chunks[-1]
        if damage == "gone":
            pushed.files.remove([chunk.name])
        else:
            pushed.files.write(chunk.name, b"?" * (chunk.size - (damage == "shorter")))
        with pytest.raises(CorruptedError, match=chunk.sha256) as failure:
            pull(pushed, entry, tmp_path / "pulled", silent)
        assert "verify" in str(failure.value.repair)
        found = verify(pushed, no_progress)
        assert [finding.subject for finding in found.findings] == [chunk.name]
        assert found.damaged() == [entry]
        drop(pushed, found)
        assert pushed.entries() == []
        push(pushed, entry, engine, silent)
        assert not verify(pushed, no_progress).findings
        pull(pushed, entry, tmp_path / "again", silent)
        assert tree(tmp_path / "again") == tree(engine)

    def test_a_corrupted_entry_is_found_and_dropped(self, pushed: Store) -> None:
        entry = pushed.entries()[0]
        pushed.files.write(entry.document, to_bytes(replace(entry, name="other")))
        with pytest.raises(CorruptedError, match="its content does not match its name"):
            pushed.find(H200, entry.key)
        found = verify(pushed, no_progress)
        assert [finding.subject for finding in found.findings] == [entry.document]
        drop(pushed, found)
        assert pushed.entries() == []

    def test_a_drop_keeps_entries_whose_corrupted_chunks_were_pushed_again(
        self, pushed: Store, engine: Path
    ) -> None:
        first, second = pushed.entries()[0], entry_of(engine, key="2" * 64)
        lost, other = sorted(first.chunks)[:2]
        pushed.files.remove([lost.name])
        pushed.files.write(other.name, b"")
        document = entry_of(engine, key="3" * 64).document
        pushed.files.write(document, b"half")
        found = verify(pushed, no_progress)
        assert len(found.findings) == 3
        push(pushed, second, engine, silent)
        drop(pushed, found)
        assert {entry.key for entry in pushed.entries()} == {first.key, second.key}
        assert not verify(pushed, no_progress).findings

    def test_a_drop_leaves_corrupted_chunks_to_a_push_in_progress(
        self, pushed: Store, engine: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry = pushed.entries()[0]
        chunk = sorted(entry.chunks)[0]
        pushed.files.write(chunk.name, b"?" * chunk.size)
        found = verify(pushed, no_progress)
        second = entry_of(engine, key="2" * 64)
        pushed.files.write(f"pushing/{second.digest}.json", to_bytes(second))
        drop(pushed, found)
        assert pushed.files.size(chunk.name) == chunk.size
        assert pushed.entries() == [entry]

        monkeypatch.setattr("trtspec.pipeline.store.transfer.LIMIT", timedelta(0))
        drop(pushed, found)
        assert pushed.files.size(chunk.name) is None
        assert pushed.entries() == []

    def test_a_shorter_object_is_written_again(self, pushed: Store, engine: Path) -> None:
        entry = pushed.entries()[0]
        pushed.files.write(next(iter(entry.chunks)).name, b"")
        push(pushed, entry, engine, silent)
        assert not verify(pushed, no_progress).findings


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a//b", "a/../b", "", "a/.", "a\0b"])
def test_an_entry_cannot_write_outside_its_folder(engine: Path, path: str) -> None:
    entry = entry_of(engine)
    files = {path: next(iter(entry.files.values()))}
    with pytest.raises(ValueError, match="is not a path in its folder"):
        from_bytes(to_bytes(replace(entry, files=files)))
    with pytest.raises(ValueError, match="is not a path in its folder"):
        from_bytes(to_bytes(replace(entry, folders=(path,))))


ZEROS = "0" * 64
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"schema": 2}', b'{"schema": 1}', b"\xff", DEEP])
def test_a_malformed_store_entry_is_rejected(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        from_bytes(content)


@pytest.mark.parametrize(
    "change",
    [{"created": 3}, {"name": ["a"]}, {"manifest": 3}, {"role": "engine"}, {"files": {"a": {"sha256": "0"}}}],
)
def test_an_entry_of_other_types_is_none(engine: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(change))}") as caught:
        from_bytes(to_bytes(replace(entry_of(engine), **change)))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "chunk", [("0" * 64, -1), ("0" * 64, True), ("0" * 64, "1"), ("0" * 63, 1), ("0" * 64,)]
)
def test_a_chunk_of_another_form_is_none(engine: Path, chunk: tuple[object, ...]) -> None:
    document = json.loads(to_bytes(entry_of(engine)))
    document["files"] = {"a": {"sha256": "0" * 64, "chunks": [chunk]}}
    with pytest.raises(ValueError, match=r"^files\.a\.chunks\.0"):
        from_bytes(json.dumps(document).encode())


def test_half_a_character_in_a_path_is_one_line(engine: Path) -> None:
    entry = entry_of(engine)
    files = {"a\ud800": next(iter(entry.files.values()))}
    with pytest.raises(ValueError, match="Invalid JSON"):
        from_bytes(to_bytes(replace(entry, files=files)))


def test_a_manifest_that_is_nested_too_deeply_is_none(engine: Path) -> None:
    manifest: dict[str, Any] = {}
    for _ in range(300):
        manifest = {"inside": manifest}
    with pytest.raises(ValueError, match="recursion limit"):
        from_bytes(to_bytes(replace(entry_of(engine), manifest=manifest)))


def test_a_folder_is_complete_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path / "store"))
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match="No space left on device"):
        store.files.write("objects/x", b"content")
    assert [item for item in (tmp_path / "store").rglob("*") if item.is_file()] == []
