from __future__ import annotations

import errno
import resource
import shutil
from pathlib import Path

import pytest

from trtspec.base.files import copy_tree, publish, remove_leftovers, temporary, write_atomically


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ("a.py", "a.pyc", "deep/b.py", "deep/__pycache__/b.pyc"):
        file = tmp_path / "source" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return tmp_path / "source"


def test_a_folder_is_copied_without_what_is_ignored(source: Path, tmp_path: Path) -> None:
    copy_tree(source, tmp_path / "new/copy", "__pycache__", "*.pyc")

    copied = {str(file.relative_to(tmp_path / "new/copy")) for file in (tmp_path / "new").rglob("*.*")}
    assert copied == {"a.py", "deep/b.py"}
    assert (tmp_path / "new/copy/deep/b.py").read_text() == "deep/b.py"
    assert (tmp_path / "new/copy/a.py").stat().st_mtime == (source / "a.py").stat().st_mtime


def test_a_full_disk_is_known_by_its_number(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(OSError, match="No space left") as caught:
        copy_tree(source, tmp_path / "copy")
    assert caught.value.errno == errno.ENOSPC


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    for text in ("old", "new"):
        made = temporary(folder)
        made.mkdir()
        (made / text).write_text(text)
        publish(made, folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["engine", "new"]


def test_a_folder_takes_the_place_of_one_whose_run_was_killed_before_it_tidied_up(tmp_path: Path) -> None:
    folder, replaced = tmp_path / "draft", tmp_path / ".draft.replaced"
    for path in (folder, replaced, temporary(folder)):
        path.mkdir()
        (path / path.name).touch()
    publish(temporary(folder), folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["draft", ".draft.partial"]


def test_a_file_takes_the_place_of_another(tmp_path: Path) -> None:
    for text in ("old", "new"):
        write_atomically(tmp_path / "sub/file.json", text)
    assert (tmp_path / "sub/file.json").read_text() == "new"
    assert len(list(tmp_path.rglob("*"))) == 2


def test_leftovers_of_a_killed_run_go_and_nothing_else(tmp_path: Path) -> None:
    for name in (".engine.partial", ".engine.replaced", ".photos.replaced", "engine/.film.partial"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    (tmp_path / ".thesis.docx.partial").touch()
    for _ in range(2):
        remove_leftovers(tmp_path / "engine")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.name != "file"}
    assert left == {".photos.replaced", ".thesis.docx.partial", "engine", "engine/.film.partial"}


def test_a_file_that_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file.json", "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_atomically(tmp_path / "file.json", 1000 * "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["file.json"]
    assert (tmp_path / "file.json").read_text() == "old"
