from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trtspec.plan.digests import FileDigests, digest_of


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    file, store = tmp_path / "weights", tmp_path / "cache/digests.json"
    file.write_bytes(b"one")
    os.link(file, tmp_path / "link")
    reads: list[int] = []
    digests = FileDigests(store)
    assert digests.of(file, reads.append) == hashlib.sha256(b"one").hexdigest()
    assert digests.of(tmp_path / "link", reads.append) == digests.of(file, reads.append)
    digests.save()
    again = FileDigests(store)
    again.of(file, reads.append)
    assert reads == [3]

    os.utime(file, ns=(0, 0))
    again.of(file, reads.append)
    file.write_bytes(b"three")
    assert again.of(file, reads.append) == hashlib.sha256(b"three").hexdigest()
    assert reads == [3, 3, 5]


def test_a_store_that_is_broken_is_only_slower(tmp_path: Path) -> None:
    (tmp_path / "digests.json").write_text("{")
    file = tmp_path / "file"
    file.touch()
    assert FileDigests(tmp_path / "digests.json").of(file) == hashlib.sha256(b"").hexdigest()


def test_a_tree_without_what_python_compiles(tmp_path: Path) -> None:
    for name in ("model/1/model.py", "model/config.pbtxt", "model/1/__pycache__/model.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = FileDigests(tmp_path / "store").of_tree(tmp_path / "model")
    assert list(found) == ["model/1/model.py", "model/config.pbtxt"]
    assert FileDigests(tmp_path / "store").of_tree(tmp_path / "nowhere") == {}


def test_equal_values_have_equal_digests() -> None:
    assert digest_of({"a": 1, "b": [2, "é"]}) == digest_of({"b": [2, "é"], "a": 1})
    assert digest_of([1, 2]) != digest_of([2, 1])
