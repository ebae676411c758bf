"""A folder that several pods share: whole or not there, pulled once, verified by all."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.pipeline.store.conftest import entry_of, tree
from trtspec.base.errors import UnavailableError
from trtspec.base.files import temporary, try_lock, write_atomically
from trtspec.base.progress import no_progress
from trtspec.pipeline.store import reuse
from trtspec.pipeline.store.reuse import find_problem, keep, remembered
from trtspec.pipeline.store.store import Entry, Store
from trtspec.pipeline.store.transfer import push

_PULL = """
import sys
from pathlib import Path
from trtspec.base.progress import no_progress
from trtspec.pipeline.store import reuse, store
from trtspec.pipeline.store.store import find_entry

url, digest, folder, stops_at = sys.argv[1:]
read, number = store.Store.read_chunk, 0

def counted(self, chunk):
    global number
    number += 1
    if number == int(stops_at):
        print("half", flush=True)
        sys.stdin.readline()
    return read(self, chunk)

store.Store.read_chunk = counted
at = store.Store(url)
print("ready", flush=True)
sys.stdin.readline()
reuse.keep(at, find_entry(at, digest), Path(folder), no_progress, lambda line: print(line, flush=True))
print("pulled", number, flush=True)
"""


class Puller:
    """A process that waits for a word before it pulls, and before a chunk that is named."""

    def __init__(self, url: str, entry: Entry, folder: Path, stops_at: int = 0) -> None:
        line = [sys.executable, "-c", _PULL, url, entry.digest, str(folder), str(stops_at)]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.hears() == "ready"

    def hears(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def entry(store: Store, engine: Path) -> Entry:
    made = entry_of(engine)
    push(store, made, engine, lambda *_: None)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "sm90" / "engine"


@pytest.fixture
def pullers() -> Iterator[list[Puller]]:
    started: list[Puller] = []
    yield started
    for puller in started:
        puller.end()


def beside(folder: Path) -> list[str]:
    """What is there but for the document of the entry."""
    return [name for name in os.listdir(folder.parent) if name != f".{folder.name}.json"]


def kept_by(store: Store, entry: Entry, folder: Path) -> tuple[int, list[str]]:
    """How many chunks were read of the store, and what was said."""
    read, said = list[str](), list[str]()
    get = store.read_chunk
    store.read_chunk = lambda chunk: read.append(chunk.name) or get(chunk)  # type: ignore[func-returns-value, method-assign]
    try:
        keep(store, entry, folder, no_progress, said.append)
    finally:
        del store.read_chunk
    return len(read), said


def test_a_kept_entry_is_pulled_once(store: Store, entry: Entry, engine: Path, folder: Path) -> None:
    assert kept_by(store, entry, folder)[0] > 10
    assert tree(folder) == tree(engine)
    assert kept_by(store, entry, folder) == (0, [])
    assert beside(folder) == [folder.name]


@pytest.mark.parametrize("harm", ["flipped", "longer", "gone", "added", "linked", "empty"])
def test_a_damaged_kept_entry_is_pulled_again(
    store: Store, entry: Entry, engine: Path, folder: Path, harm: str
) -> None:
    keep(store, entry, folder, no_progress, lambda _: None)
    file = folder / "rank1.engine"
    if harm == "flipped":
        with file.open("r+b") as stream:
            stream.seek(5000)
            stream.write(b"\0")
    elif harm == "longer":
        file.write_bytes(file.read_bytes() + b"a")
    elif harm == "linked":
        shutil.move(file, folder.parent / "elsewhere")
        file.symlink_to(folder.parent / "elsewhere")
    elif harm == "added":
        (folder / "1" / "model.py").touch()
    else:
        file.unlink()
        if harm == "empty":
            shutil.rmtree(folder)
            folder.mkdir()
    assert find_problem(entry, folder, no_progress)

    chunks, said = kept_by(store, entry, folder)

    assert chunks > 10
    assert "it is pulled again" in said[0]
    assert tree(folder) == tree(engine)
    assert find_problem(entry, folder, no_progress) is None


def test_two_pods_pull_an_entry_once_and_the_second_waits(
    store: Store, entry: Entry, engine: Path, folder: Path, pullers: list[Puller]
) -> None:
    url = store.address.url
    pullers += [Puller(url, entry, folder, stops_at=5), Puller(url, entry, folder)]
    first, second = pullers
    first.go()
    assert first.hears() == "half"
    second.go()
    assert second.hears() == f"waiting for another process that pulls {folder}"
    assert not folder.exists()
    first.go()

    assert first.hears().startswith("pulled ")
    assert second.hears() == "pulled 0"
    assert tree(folder) == tree(engine)


def test_a_pull_that_was_killed_is_gone_on_with(
    store: Store, entry: Entry, engine: Path, folder: Path, pullers: list[Puller]
) -> None:
    pullers.append(Puller(store.address.url, entry, folder, stops_at=15))
    pullers[0].go()
    assert pullers[0].hears() == "half"
    pullers[0].process.send_signal(signal.SIGKILL)
    pullers[0].process.wait()
    assert not folder.exists()
    assert temporary(folder).exists()

    chunks, _ = kept_by(store, entry, folder)

    assert 0 < chunks < sum(len(file.chunks) for file in entry.files.values())
    assert tree(folder) == tree(engine)
    assert beside(folder) == [folder.name]


def test_a_pull_removes_the_remains_of_killed_pulls_and_spares_running_ones(
    store: Store, entry: Entry, folder: Path
) -> None:
    dead, alive = (temporary(folder.with_name(name)) for name in ("dead", "alive"))
    for left in (dead, alive):
        left.mkdir(parents=True)
    folder.with_name(".dead.lock").touch()
    descriptor = try_lock(folder.with_name(".alive.lock"))
    assert descriptor is not None
    keep(store, entry, folder, no_progress, lambda _: None)
    assert (dead.exists(), alive.exists()) == (False, True)
    os.close(descriptor)


def test_a_folder_of_the_users_beside_a_pulled_one_stays(store: Store, entry: Entry, folder: Path) -> None:
    theirs = [folder.with_name(name) for name in (".photos.partial", ".photos.replaced")]
    for each in theirs:
        each.mkdir(parents=True)
    keep(store, entry, folder, no_progress, lambda _: None)
    assert all(each.exists() for each in theirs)


def test_a_document_that_another_process_writes_is_left_alone(
    store: Store, entry: Entry, folder: Path
) -> None:
    document = temporary(folder.with_name(".other.json"))
    document.parent.mkdir(parents=True)
    document.write_text("half")
    keep(store, entry, folder, no_progress, lambda _: None)
    assert document.read_text() == "half"


def test_no_room_names_what_could_go(
    store: Store, entry: Entry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.with_name("older").mkdir(parents=True)
    free = shutil.disk_usage(folder.parent)._replace(free=entry.size - 1)
    monkeypatch.setattr("trtspec.pipeline.store.reuse.shutil.disk_usage", lambda _: free)
    with pytest.raises(UnavailableError, match=r"llama needs 20,\d+ B, but 20,\d+ B are free") as found:
        keep(store, entry, folder, no_progress, lambda _: None)
    assert (
        found.value.repair
        == "give the volume more room, or remove those of older that no pod serves any more"
    )
    assert beside(folder) == ["older"]


def test_a_kept_entry_on_a_read_only_volume_is_still_verified(
    store: Store, entry: Entry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that was filled before, and is mounted to be read."""
    keep(store, entry, folder, no_progress, lambda _: None)

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("trtspec.pipeline.store.reuse.locked", read_only)
    assert kept_by(store, entry, folder) == (0, [])
    (folder / "config.json").write_text("{}")
    said = r"has another config\.json, and this folder cannot be written: Read-only file system"
    with pytest.raises(UnavailableError, match=said) as found:
        keep(store, entry, folder, no_progress, lambda _: None)
    assert found.value.repair == f"let user {os.getuid()} write to {folder.parent}"


def test_the_entry_of_a_folder_is_remembered(store: Store, entry: Entry, folder: Path) -> None:
    assert remembered(folder, entry.digest) is None
    keep(store, entry, folder, no_progress, lambda _: None)
    assert remembered(folder, entry.digest) == entry
    assert remembered(folder, "1" * 64) is None
    document = folder.with_name(f".{folder.name}.json")
    document.write_bytes(document.read_bytes().replace(b'"llama"', b'"other"'))
    assert remembered(folder, entry.digest) is None


def test_a_folder_whose_pull_was_killed_before_its_end_is_remembered_by_the_next(
    store: Store, entry: Entry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reuse, "write_atomically", die)
    with pytest.raises(KeyboardInterrupt):
        keep(store, entry, folder, no_progress, lambda _: None)
    monkeypatch.setattr(reuse, "write_atomically", write_atomically)
    assert folder.exists()
    assert remembered(folder, entry.digest) is None
    assert kept_by(store, entry, folder) == (0, [])
    assert remembered(folder, entry.digest) == entry


def test_a_whole_folder_is_used_where_no_document_can_be_written(
    store: Store, entry: Entry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    keep(store, entry, folder, no_progress, lambda _: None)
    folder.with_name(f".{folder.name}.json").unlink()
    monkeypatch.setattr(reuse, "write_atomically", full)
    assert kept_by(store, entry, folder) == (0, [])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux alone has a device that is always full")
def test_a_disk_that_gets_full_meanwhile_is_left_as_it_was(
    store: Store, entry: Entry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        Path("/dev/full").write_bytes(b"a")

    monkeypatch.setattr(reuse, "pull", full)
    with pytest.raises(UnavailableError, match="llama needs"):
        keep(store, entry, folder, no_progress, lambda _: None)
    assert beside(folder) == []
