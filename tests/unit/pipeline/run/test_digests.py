from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trtspec.base.digest import digest_of
from trtspec.base.errors import ChangedError
from trtspec.base.progress import Advance
from trtspec.pipeline.run import records as module
from trtspec.pipeline.run.records import FileDigests
from trtspec.pipeline.run.step import Step


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


def written_in_place(file: Path) -> None:
    """As `rsync --inplace --times` does: only the time of the status tells."""
    stat = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize(
    "harm",
    [
        Path.touch,
        Path.unlink,
        written_in_place,
        lambda file: shutil.copy2(file, file.with_name("copy")) and file.with_name("copy").rename(file),
        lambda file: file.with_name("absent").touch(),
    ],
    ids=["touched", "removed", "written", "replaced", "added"],
)
def test_a_source_is_the_one_that_was_noted(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    file, digests = tmp_path / "weights", FileDigests(tmp_path / "store", Reads().watch)
    file.write_bytes(b"one")
    digests.note([file, tmp_path / "absent"])
    digests.of(file)
    os.link(file, tmp_path / "backup")
    digests.check()
    harm(file)
    digests.note([file, tmp_path / "absent"])
    with pytest.raises(ChangedError, match=r"(weights|absent): has changed since this build began"):
        digests.check()


def test_a_digest_is_of_one_file_though_another_is_moved_over_it_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the one that came first would be known for ever by the digest of the other."""
    monkeypatch.setattr(module, "LARGE", 0)
    file, other, backup = tmp_path / "weights", tmp_path / "other", tmp_path / "backup"
    file.write_bytes(b"one")
    os.link(file, backup)
    other.write_bytes(b"two")

    @contextmanager
    def watch(label: str, size: int | None) -> Iterator[Advance]:
        if other.exists():
            other.rename(file)
        yield lambda *_: None

    digests = FileDigests(tmp_path / "store", watch)
    with pytest.raises(ChangedError, match="weights: changed while it was read"):
        digests.of(file)
    assert digests.of(backup) == hashlib.sha256(b"one").hexdigest()


def test_weights_have_the_digest_that_the_hub_tells_until_they_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was downloaded may be broken, and its engine must not be known as one of the published weights."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    outline, snapshot = tmp_path / "outlines/models--a--b/c", tmp_path / "hub/models--a--b/snapshots/c"
    for folder, content in ((outline, b"header"), (snapshot, b"broken")):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(content)
    (outline / ".sha256.json").write_text('{"model.safetensors": "published"}')
    (snapshot / "model.safetensors").rename(tmp_path / "later")
    step = Step("convert", "", ("a/b",), None, (), [outline / "model.safetensors"], print)
    digests = FileDigests(tmp_path / "store", Reads().watch)
    assert digests.of_step(step) == digest_of(["published"])
    (tmp_path / "later").rename(snapshot / "model.safetensors")
    assert digests.of_step(step) == digest_of([hashlib.sha256(b"broken").hexdigest()])
    digests.check()
    (snapshot / "model.safetensors").write_bytes(b"mended")
    with pytest.raises(ChangedError, match=r"snapshots/c/model\.safetensors: has changed"):
        digests.check()


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
