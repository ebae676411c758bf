from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trtspec.base.errors import EngineError, UnavailableError
from trtspec.base.progress import Advance
from trtspec.pipeline.run.launcher import LocalLauncher
from trtspec.pipeline.run.records import FileDigests, pending
from trtspec.pipeline.run.runner import groups, only_build, run, run_together
from trtspec.pipeline.run.step import Step


class Kitchen:
    """Two steps, `bread` out of `flour`, whose digests and results a test can change."""

    def __init__(self, build: Path) -> None:
        self.build, self.watched = build, list[str]()
        self.digests = {"flour": "1", "bread": "1"}
        self.flour: Callable[[Path], Any] = lambda path: path.write_text("flour")
        self.obstacle: EngineError | None = None

    @property
    def steps(self) -> list[Step]:
        def flour(path: Path, advance: Advance) -> None:
            self.flour(path)

        def bread(path: Path, advance: Advance) -> None:
            path.mkdir()
            (path / "loaf").write_text(f"bread of {(self.build / 'flour').read_text()}")

        return [
            Step("mill", "", (), "flour", (), self.digests["flour"], flour),
            Step(
                "bake",
                "",
                (),
                "out/bread",
                (),
                self.digests["bread"],
                bread,
                ("mill",),
                obstacle=self.obstacle,
            ),
        ]

    def run(self) -> list[str]:
        return run(
            self.steps,
            self.build,
            FileDigests(self.build / ".trtspec/digests.json", self._watch),
            self._watch,
        )

    def pending(self) -> set[str]:
        return pending(self.steps, self.build, FileDigests(self.build / ".trtspec/digests.json", self._watch))

    @contextmanager
    def _watch(self, label: str, size: int | None) -> Iterator[Advance]:
        self.watched.append(label)
        yield lambda *_: None

    @property
    def loaf(self) -> str:
        return (self.build / "out/bread/loaf").read_text()


@pytest.fixture
def kitchen(tmp_path: Path) -> Kitchen:
    return Kitchen(tmp_path / "build")


def test_a_finished_step_is_not_run_again(kitchen: Kitchen) -> None:
    assert kitchen.pending() == {"mill", "bake"}
    assert not kitchen.build.exists()
    assert kitchen.run() == ["mill", "bake"]
    assert (kitchen.run(), kitchen.pending()) == ([], set())
    assert kitchen.watched == ["mill", "bake"]


def test_a_step_whose_digest_changed_is_run_and_what_comes_after_it(kitchen: Kitchen) -> None:
    kitchen.run()
    kitchen.digests["flour"] = "2"
    kitchen.flour = lambda path: path.write_text("rye")
    assert kitchen.pending() == {"mill", "bake"}
    assert kitchen.run() == ["mill", "bake"]
    assert kitchen.loaf == "bread of rye"
    kitchen.digests["bread"] = "2"
    assert kitchen.run() == ["bake"]


def test_a_step_whose_inputs_came_out_the_same_is_not_run(kitchen: Kitchen) -> None:
    kitchen.run()
    kitchen.digests["flour"] = "2"
    assert kitchen.run() == ["mill"]


def test_outputs_that_were_changed_or_lost_are_made_again(kitchen: Kitchen) -> None:
    kitchen.run()
    (kitchen.build / "out/bread/loaf").write_text("eaten")
    assert kitchen.run() == ["bake"]
    (kitchen.build / "out/bread/mould").touch()
    assert kitchen.run() == ["bake"]
    (kitchen.build / "flour").unlink()
    assert kitchen.run() == ["mill"]
    assert kitchen.loaf == "bread of flour"


def test_touching_an_output_does_not_make_it_again(kitchen: Kitchen) -> None:
    kitchen.run()
    (kitchen.build / "flour").touch()
    assert kitchen.run() == []


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_a_step_that_fails_leaves_nothing_and_keeps_what_was_there(
    kitchen: Kitchen, error: BaseException
) -> None:
    kitchen.run()

    def fail(path: Path) -> None:
        path.write_text("half")
        raise error

    kitchen.digests["flour"], kitchen.flour = "2", fail
    with pytest.raises(type(error)):
        kitchen.run()
    assert (kitchen.build / "flour").read_text() == "flour"
    assert not list(kitchen.build.glob(".flour*"))
    assert kitchen.pending() == {"mill", "bake"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_clear_error(kitchen: Kitchen, number: int) -> None:
    def fail(path: Path) -> None:
        raise OSError(number, "no more")

    kitchen.flour = fail
    with pytest.raises(UnavailableError, match="flour: the disk is full") as caught:
        kitchen.run()
    assert "same command again" in str(caught.value.repair)


def test_an_obstacle_is_said_before_anything_is_done(kitchen: Kitchen) -> None:
    kitchen.obstacle = EngineError("oven", "is cold")
    with pytest.raises(EngineError, match="oven: is cold"):
        kitchen.run()
    assert not (kitchen.build / "flour").exists()
    kitchen.obstacle = None
    kitchen.run()
    kitchen.obstacle = EngineError("oven", "is cold")
    assert kitchen.run() == []


def test_a_folder_of_the_users_is_left_alone(kitchen: Kitchen) -> None:
    (kitchen.build / "out").mkdir(parents=True)
    with pytest.raises(UnavailableError, match="holds out, which trtspec did not make"):
        kitchen.run()


@pytest.mark.parametrize("name", [".flour.partial", ".flour.replaced"])
def test_a_file_of_the_users_that_is_called_as_what_a_killed_run_leaves_is_left_alone(
    kitchen: Kitchen, name: str
) -> None:
    kitchen.build.mkdir()
    (kitchen.build / name).write_text("rye")
    with pytest.raises(UnavailableError, match=f"holds {name}, which trtspec did not make"):
        kitchen.run()
    assert (kitchen.build / name).read_text() == "rye"


def test_a_run_removes_remnants_of_a_killed_run_but_no_files_of_the_user(kitchen: Kitchen) -> None:
    kitchen.run()
    (kitchen.build / "flour").unlink()
    ours = [".flour.partial", "out/.bread.replaced", "out/.bread.partial"]
    theirs = [
        ".thesis.docx.partial",
        ".photos.replaced/photo",
        "out/.film.mkv.partial",
        "sub/.film.mkv.partial",
    ]
    for name in (*ours, *theirs):
        (kitchen.build / name).parent.mkdir(exist_ok=True)
        (kitchen.build / name).write_text(name)
    kitchen.run()
    assert [name for name in ours if (kitchen.build / name).exists()] == []
    assert [(kitchen.build / name).read_text() for name in theirs] == theirs


def test_broken_records_are_as_none(kitchen: Kitchen) -> None:
    kitchen.run()
    for text in ("", "[]", '{"mill": {}}', '{"mill": 3}'):
        (kitchen.build / ".trtspec/steps.json").write_text(text)
        assert kitchen.run() == ["mill", "bake"]


def step(name: str, *gpus: str, after: tuple[str, ...] = ()) -> Step:
    def nothing(made: Path, advance: Advance) -> None:
        return

    return Step(name, "", (), name, (), "", nothing, after=after, gpus=gpus)


def grouped(*steps: Step) -> list[str]:
    return [" ".join(step.name for step in group) for group in groups(steps)]


def test_only_steps_with_gpus_of_their_own_are_together() -> None:
    assert grouped(step("a"), step("b"), step("c", "0"), step("d", "1"), step("e")) == ["a", "b", "c d", "e"]
    assert grouped(step("c", "0", "1"), step("d", "1")) == ["c", "d"]
    assert grouped(step("c", "0"), step("d", "1", after=("c",))) == ["c", "d"]
    assert grouped(step("c", "0"), step("d", "1"), step("e", "2")) == ["c d e"]
    assert grouped() == []


class Together:
    """Two jobs that can only end if both run at once."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=120)
        self.heard: list[tuple[int, str]] = []

    def advance(self, amount: int, note: str = "", /) -> None:
        self.heard.append((amount, note))

    def job(self, advance: Advance) -> None:
        self.barrier.wait()
        advance(1, "working")


def test_jobs_run_at_once_and_are_told_of_as_they_end() -> None:
    pair = Together()
    ended = dict(run_together([pair.job, pair.job], pair.advance))
    assert sorted(ended) == [0, 1]
    assert all(0 <= seconds < 120 for seconds in ended.values())
    assert sorted(pair.heard) == [(1, "working"), (1, "working | working")]


def test_one_job_runs_where_it_was_asked_for() -> None:
    """In the main thread Ctrl-C reaches it at once."""
    threads = []
    list(run_together([lambda _: threads.append(threading.current_thread())], Together().advance))
    assert threads == [threading.current_thread()]


def test_a_failure_ends_the_others_at_their_next_word() -> None:
    pair, stopped = Together(), threading.Event()

    def fails(advance: Advance) -> None:
        pair.barrier.wait()
        raise ValueError("no luck")

    def goes_on(advance: Advance) -> None:
        pair.barrier.wait()
        try:
            while True:
                advance(0, "still here")
                threading.Event().wait(0.001)
        finally:
            stopped.set()

    with pytest.raises(ValueError, match="no luck"):
        list(run_together([goes_on, fails], pair.advance))
    assert stopped.is_set()


HOLD = """
import sys, time
from pathlib import Path
from trtspec.pipeline.run.runner import only_build
with only_build(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UnavailableError, match=rf"another build is running here \(process {other.pid}\)"):
            only_build(tmp_path).__enter__()
        other.kill()
    with only_build(tmp_path):
        pass


def test_a_builder_that_outlives_trtspec_keeps_the_directory(tmp_path: Path) -> None:
    with only_build(tmp_path), (tmp_path / "log").open("wb") as log:
        builder = LocalLauncher("sleep").start(("sleep", "600"), log, tmp_path)
    try:
        with pytest.raises(UnavailableError):
            only_build(tmp_path).__enter__()
    finally:
        builder.kill()
    with only_build(tmp_path):
        pass
