"""Who builds: one at a time, whoever is killed, held up or asleep."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pipeline.store import many_builders
from tests.unit.pipeline.store.conftest import H200, entry_of
from trtspec.base.errors import StoreError
from trtspec.base.progress import Advance, no_progress
from trtspec.pipeline.store import lease as room
from trtspec.pipeline.store.files import Files, Stat
from trtspec.pipeline.store.lease import Builder, from_bytes, leased, to_bytes
from trtspec.pipeline.store.store import Store
from trtspec.pipeline.store.transfer import push
from trtspec.pipeline.store.upkeep import PruneRules, prune, verify

KEY = "1" * 64
FOLDER = f"building/{H200.folder}/{KEY}"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"SETTLE_S": 0.2, "POLL_S": 0.01, "RENEWAL_S": 0.01}.items():
        monkeypatch.setattr(room, name, seconds)


def documents(store: Store) -> list[Builder | None]:
    names = sorted(store.files.find(FOLDER))
    return [from_bytes(store.files.read(name) or b"") for name in names]


class Waiting:
    """A `Progress` that keeps what it is told, and raises `Enough` at the `most`th note."""

    def __init__(self, most: int = 1) -> None:
        self.labels, self.notes, self._most = list[str](), list[str](), most

    @contextmanager
    def __call__(self, label: str, size: int | None) -> Iterator[Advance]:
        self.labels.append(label)
        yield self._note

    def _note(self, amount: int, note: str = "") -> None:
        self.notes.append(note)
        if len(self.notes) == self._most:
            raise Enough


class Enough(Exception): ...


def until_waiting(store: Store) -> Waiting:
    """What a second builder is told that finds somebody at work."""
    waiting = Waiting()
    with pytest.raises(Enough), leased(store, H200, KEY, "target", waiting):
        pytest.fail("two build")
    return waiting


def later(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """The store's clock goes on by so much."""
    now = Files.now

    def then(self: Files) -> datetime | None:
        time = now(self)
        return time and time + by

    monkeypatch.setattr(Files, "now", then)


class TestOneBuilder:
    def test_a_builder_holds_its_lease_and_leaves_no_trace_of_it(self, store: Store, engine: Path) -> None:
        with leased(Store(store.address.url), H200, KEY, "target", no_progress) as lease:
            assert lease
            [mine] = documents(store)
            assert mine
            assert mine.what == "target"
            push(store, entry_of(engine), engine, lambda *_: None)
        assert not lease.is_lost
        assert store.files.find("building") == {}

    def test_who_gives_up_leaves_the_next_number(self, store: Store) -> None:
        for number in (1, 2):
            interrupted = leased(store, H200, KEY, "target", no_progress)
            assert interrupted.__enter__()
            assert not interrupted.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
            assert [builder and builder.released for builder in documents(store)] == [True] * number

    def test_an_engine_that_is_stored_already_needs_no_lease(self, store: Store, engine: Path) -> None:
        push(store, entry_of(engine), engine, lambda *_: None)
        with leased(store, H200, KEY, "target", no_progress) as lease:
            assert lease is None
        assert store.files.find("building") == {}

    def test_an_engine_stored_while_the_lease_is_taken_needs_no_lease(
        self, store: Store, engine: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        take = room._Leases.take

        def take_late(self: room._Leases, *args: Any) -> str | None:
            push(store, entry_of(engine), engine, lambda *_: None)
            return take(self, *args)

        monkeypatch.setattr(room._Leases, "take", take_late)
        with leased(store, H200, KEY, "target", no_progress) as lease:
            assert lease is None
        assert store.files.find("building") == {}

    def test_other_engines_are_others(self, store: Store) -> None:
        with (
            leased(store, H200, KEY, "target", no_progress) as one,
            leased(store, H200, "2" * 64, "draft", no_progress) as two,
            leased(store, replace(H200, sm=89), KEY, "target", no_progress) as three,
        ):
            assert one
            assert two
            assert three


class TestTwoBuilders:
    def test_the_second_is_told_who_builds(self, store: Store) -> None:
        with leased(store, H200, KEY, "target", no_progress) as lease:
            assert lease
            lease.tell("convert target")
            renewed = threading.Event()
            write = store.files.write

            def note(name: str, content: bytes) -> None:
                write(name, content)
                renewed.set()

            store.files.write = note  # type: ignore[method-assign]
            assert renewed.wait(120)
            waiting = until_waiting(Store(store.address.url))
        assert waiting.labels == ["wait for target"]
        assert "builds it since" in waiting.notes[0]
        assert waiting.notes[0].endswith("(convert target)")

    def test_the_second_finds_what_the_first_has_stored(self, store: Store, engine: Path) -> None:
        waits, found = threading.Event(), list[object]()

        @contextmanager
        def watch(label: str, size: int | None) -> Iterator[Advance]:
            yield lambda *_: waits.set()

        def second() -> None:
            with leased(Store(store.address.url), H200, KEY, "target", watch) as lease:
                found.append(lease)

        thread = threading.Thread(target=second)
        with leased(store, H200, KEY, "target", no_progress):
            thread.start()
            assert waits.wait(120)
            assert found == []
            push(store, entry_of(engine), engine, lambda *_: None)
        thread.join(120)
        assert found == [None]

    def test_one_who_slept_is_told_that_another_builds(self, store: Store) -> None:
        with leased(store, H200, KEY, "target", no_progress) as lease:
            assert lease
            store.files.write(f"{FOLDER}/000002.json", to_bytes(Builder("target", 120.0)))
            lease._thread.join(120)
            assert lease.is_lost
        # What is not its own stays.
        assert f"{FOLDER}/000002.json" in store.files.find(FOLDER)

    def test_a_store_that_fails_for_a_while_loses_no_lease(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed, renewed = threading.Event(), threading.Event()
        write = store.files.write

        def fail(name: str, content: bytes) -> None:
            if not failed.is_set():
                failed.set()
                raise StoreError("store", "is away")
            write(name, content)
            renewed.set()

        with leased(store, H200, KEY, "target", no_progress) as lease:
            assert lease
            monkeypatch.setattr(store.files, "write", fail)
            assert renewed.wait(120)
            assert not lease.is_lost


class TestExpiry:
    def test_a_newcomer_knows_the_times_of_an_object_store(
        self, s3_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = Store(s3_url)
        store.files.write(f"{FOLDER}/000001.json", to_bytes(Builder("target", 120.0)))
        until_waiting(store)
        later(monkeypatch, timedelta(seconds=121))
        with leased(store, H200, KEY, "target", no_progress) as lease:
            assert lease
            assert f"{FOLDER}/000002.json" in store.files.find(FOLDER)

    def test_times_that_machines_write_are_not_believed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither the builder's clock, years behind, nor the waiter's makes a lease expire."""
        store = Store(str(tmp_path / "store"))
        store.files.write(f"{FOLDER}/000001.json", to_bytes(Builder("target", 0.2, since="2001-01-01")))
        find = Files.find

        def aged(self: Files, folder: str) -> dict[str, Stat]:
            found = find(self, folder)
            ages = timedelta(days=9000)
            return {n: replace(s, modified=s.modified and s.modified - ages) for n, s in found.items()}

        monkeypatch.setattr(Files, "find", aged)
        until_waiting(store)
        waiting = Waiting(most=1000)
        with leased(store, H200, KEY, "target", waiting) as lease:
            assert lease
        # It has stood still for as long as it says, by the waiter's steady clock.
        assert waiting.notes

    def test_one_that_is_renewed_does_not_expire(self, tmp_path: Path) -> None:
        store = Store(str(tmp_path / "store"))
        name, beats = f"{FOLDER}/000001.json", 0

        class Renewing(Waiting):
            def _note(self, amount: int, note: str = "") -> None:
                nonlocal beats
                beats += 1
                store.files.write(name, to_bytes(Builder("target", 0.05, id="1", beat=beats)))
                super()._note(amount, note)

        store.files.write(name, to_bytes(Builder("target", 0.05, id="1")))
        with pytest.raises(Enough), leased(store, H200, KEY, "target", Renewing(30)):
            pytest.fail("two build")

    @pytest.mark.parametrize("content", [b"", b'{"schema": 1, "what"', b'{"schema": 2}', b"[]", b"\xff"])
    def test_one_that_cannot_be_read_is_held(self, store: Store, content: bytes) -> None:
        """Somebody may be about to write it, or it is of a later version."""
        store.files.write(f"{FOLDER}/000001.json", content)
        assert "an unknown machine" in until_waiting(store).notes[0]


class TestHouseKeeping:
    def test_a_prune_removes_what_the_dead_have_left(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = f"{FOLDER}/000001.json"
        store.files.write(name, to_bytes(Builder("target", 120.0)))
        rules = PruneRules(None, None, timedelta(hours=1))
        assert prune(store, rules, lambda *_: None, dry_run=False).names == ()
        assert prune(store, replace(rules, grace=timedelta(0)), lambda *_: None, dry_run=False).names == (
            name,
        )
        assert store.files.find("") == {}

    def test_a_lease_is_nothing_that_verify_reads(self, store: Store, engine: Path) -> None:
        push(store, entry_of(engine), engine, lambda *_: None)
        store.files.write(f"{FOLDER}/000001.json", b"half")
        found = verify(store, no_progress)
        assert not found.findings
        assert len(found.entries) == 1


class TestExclusiveFiles:
    def test_one_of_many_makes_a_file(self, store: Store) -> None:
        made = [store.files.create("a/b", str(number).encode()) for number in range(3)]
        if store.address.protocol == "memory":
            assert made == [None] * 3
            assert store.files.read("a/b") is None
        else:
            assert made == [True, False, False]
            assert store.files.read("a/b") == b"0"

    def test_a_request_that_was_sent_twice_has_made_it(self, s3_url: str) -> None:
        files = Store(s3_url).files
        files.write("a", b"mine")
        assert files.create("a", b"mine")
        assert files.create("a", b"other") is False

    def test_a_server_that_ignores_the_condition_is_not_trusted(
        self, s3_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = Store(s3_url)
        pipe = store.files._system.pipe_file
        monkeypatch.setattr(store.files._system, "pipe_file", lambda path, content, **_: pipe(path, content))
        assert store.files.create("a", b"mine") is None
        assert store.files.read("a") is None
        with leased(store, H200, KEY, "target", no_progress) as lease:
            assert lease
            [name] = store.files.find(FOLDER)
            assert name != f"{FOLDER}/000001.json"
            until_waiting(Store(s3_url))


class TestManyProcesses:
    COUNT = 5

    @pytest.mark.parametrize(
        ("place", "mode"),
        [
            ("folder", "create"),
            pytest.param("folder", "names", marks=pytest.mark.sweep),
            pytest.param("s3", "create", marks=pytest.mark.sweep),
        ],
    )
    def test_one_builds_at_a_time_whoever_is_killed(
        self, request: pytest.FixtureRequest, tmp_path: Path, engine: Path, place: str, mode: str
    ) -> None:
        url = str(request.getfixturevalue("s3_url") if place == "s3" else tmp_path / "store")
        log, deaths = tmp_path / "log", 2
        log.touch()
        command = [sys.executable, "-m", many_builders.__name__, url, engine, log, self.COUNT, deaths, mode]
        root = Path(__file__).parents[4]
        done = subprocess.run(list(map(str, command)), cwd=root, capture_output=True, text=True, timeout=600)
        assert not done.stderr
        assert sorted(done.stdout.split()) == ["-9"] * deaths + ["0"] * (self.COUNT - deaths)
        events = [line.split() for line in log.read_text().splitlines()]
        built = [event for event, _ in events if event != "finds"]
        assert built == ["begins", "dies"] * deaths + ["begins", "ends"]
        assert sum(event == "finds" for event, _ in events) == self.COUNT - deaths - 1
        assert all(one[1] == two[1] for one, two in zip(events[:6:2], events[1:6:2], strict=True))
        store = Store(url)
        assert len(store.entries()) == 1
        assert not verify(store, no_progress).findings
        assert store.files.find("building") == {}
