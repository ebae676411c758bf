"""Builders as processes: killed at every write, and two at once, beside a prune."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from tests.unit.pipeline.store import pusher
from tests.unit.pipeline.store.conftest import H200, entry_of, tree
from trtspec.base.progress import no_progress
from trtspec.pipeline.store.store import Store
from trtspec.pipeline.store.transfer import pull
from trtspec.pipeline.store.upkeep import PruneRules, prune, verify

START = "2026-01-01T00:00:00+00:00"


def start(*args: object) -> subprocess.Popen[str]:
    """Ready to push when it is told to."""
    command = [sys.executable, "-m", pusher.__name__, *map(str, args)]
    root = Path(__file__).parents[4]
    process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.sweep)])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("s3_url") if request.param == "s3" else tmp_path / "store")


@pytest.fixture
def small_engine(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "rank0.engine").write_bytes(b"a" * 1024 + b"b" * 1024 + b"c")
    return folder


def test_a_push_that_is_killed_at_any_write_goes_on(
    shared_url: str, small_engine: Path, tmp_path: Path
) -> None:
    store = Store(shared_url)
    kept: set[str] = set()
    # At its announcement, at its first chunk, at each further chunk, at the entry.
    for write in range(8):
        process = start(shared_url, small_engine, START, write)
        process.communicate("go\n")
        if process.returncode == 0:
            break
        assert process.returncode == pusher.DEAD
        assert store.entries() == []
        prune(store, PruneRules(None, None, timedelta(hours=1)), lambda *_: None, dry_run=False)
        found = store.files.find("objects")
        for name in found:
            content = store.files.read(name)
            assert content is not None
            assert sha256(content).hexdigest() == name.rpartition("/")[2]
        assert kept <= found.keys()
        kept = set(found)
    assert process.returncode == 0
    entry = store.find(H200, "1" * 64)
    assert entry is not None
    assert not verify(store, no_progress).findings
    pull(store, entry, tmp_path / "pulled", lambda *_: None)
    assert tree(tmp_path / "pulled") == tree(small_engine)


def test_two_builders_and_a_prune_at_once(shared_url: str, small_engine: Path, tmp_path: Path) -> None:
    """Both made an engine of one key, and TensorRT never makes the same twice."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    (other / "rank0.engine").write_bytes(b"a" * 1024 + b"d" * 5000)
    folders = {START: small_engine, "2026-01-01T00:00:01+00:00": other}
    builders = [start(shared_url, folder, created) for created, folder in folders.items()]
    for builder in builders:
        assert builder.stdin
        builder.stdin.write("go\n")
        builder.stdin.flush()
    store = Store(shared_url)
    for _ in range(5):  # Each holds the builders up, so they must end.
        prune(store, PruneRules(None, None, timedelta(hours=1)), lambda *_: None, dry_run=False)
    assert [builder.wait() for builder in builders] == [0, 0]
    for builder in builders:
        builder.communicate()
    assert len(store.entries()) == 2
    assert not verify(store, no_progress).findings
    found = store.find(H200, "1" * 64)
    assert found is not None
    assert found.created == START
    for entry in store.entries():
        pull(store, entry, tmp_path / entry.digest, lambda *_: None)
        assert tree(tmp_path / entry.digest) == tree(folders[entry.created])


def test_the_same_engine_pushed_twice_at_once(shared_url: str, small_engine: Path) -> None:
    builders = [start(shared_url, small_engine, START) for _ in range(2)]
    for builder in builders:
        assert builder.stdin
        builder.stdin.write("go\n")
        builder.stdin.flush()
    assert [builder.wait() for builder in builders] == [0, 0]
    for builder in builders:
        builder.communicate()
    store = Store(shared_url)
    assert store.entries() == [entry_of(small_engine, created=START)]
    assert not verify(store, no_progress).findings
