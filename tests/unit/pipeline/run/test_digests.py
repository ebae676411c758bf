from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trtspec.base.digest import digest_of
from trtspec.base.progress import Advance
from trtspec.pipeline.run import digests as module
from trtspec.pipeline.run.digests import FileDigests


class Reads(list[int]):
    """Remembers every read."""

    @contextmanager
    def watch(self, label: str, size: int | None) -> Iterator[Advance]:
        assert label.startswith("read ")
        yield lambda amount, *_: self.append(amount)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    monkeypatch.setattr(module, "LARGE", 0)
    return Reads()


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, reads: Reads) -> None:
    file, store = tmp_path / "weights", tmp_path / "cache/digests.json"
    file.write_bytes(b"one")
    os.link(file, tmp_path / "link")
    digests = FileDigests(store, reads.watch)
    assert digests.of(file) == digests.of(tmp_path / "link") == hashlib.sha256(b"one").hexdigest()
    digests.save()
    again = FileDigests(store, reads.watch)
    again.of(file)
    assert reads == [3]

    os.utime(file, ns=(0, 0))
    again.of(file)
    file.write_bytes(b"three")
    assert again.of(file) == hashlib.sha256(b"three").hexdigest()
    assert reads == [3, 3, 5]


def test_small_files_are_not_talked_of(tmp_path: Path) -> None:
    reads = Reads()
    (tmp_path / "file").write_bytes(b"small")
    FileDigests(tmp_path / "store", reads.watch).of(tmp_path / "file")
    assert reads == []


def test_a_store_that_is_broken_is_only_slower(tmp_path: Path, reads: Reads) -> None:
    for content in ("{", "[]"):
        (tmp_path / "digests.json").write_text(content)
        (tmp_path / "file").touch()
        digest = FileDigests(tmp_path / "digests.json", reads.watch).of(tmp_path / "file")
        assert digest == hashlib.sha256(b"").hexdigest()


def test_a_tree_without_what_python_compiles(tmp_path: Path, reads: Reads) -> None:
    for name in ("model/1/model.py", "model/config.pbtxt", "model/1/__pycache__/model.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    digests = FileDigests(tmp_path / "store", reads.watch)
    assert list(digests.of_tree(tmp_path / "model")) == ["model/1/model.py", "model/config.pbtxt"]
    assert digests.of_tree(tmp_path / "nowhere") == {}


def test_equal_values_have_equal_digests() -> None:
    assert digest_of({"a": 1, "b": [2, "é"]}) == digest_of({"b": [2, "é"], "a": 1})
    assert digest_of([1, 2]) != digest_of([2, 1])
