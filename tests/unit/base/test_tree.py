from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from trtspec.base.tree import copy_tree


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
