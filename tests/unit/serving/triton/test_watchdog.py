"""The watchdog of a process, which is a child of the server here too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trtspec.serving.triton.watching import ProcessStat, Watch

ROOT = Path(__file__).parents[4]
# The process does what it is told, line by line; the server is a process that sleeps.
PROCESS = """
import os, signal, sys, time
from trtspec.serving.triton.watchdog import Watchdog
watchdog = Watchdog("pair")
for line in open(sys.argv[1]):
    exec(line)
"""
SERVER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
time.sleep(600)
"""


def serve(folder: Path, told: str) -> subprocess.Popen[str]:
    (folder / "told").write_text(told)
    return subprocess.Popen(
        [sys.executable, "-c", SERVER, PROCESS, str(folder / "told")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "pair was killed by SIGKILL"),
        ("os.abort()", "pair was killed by SIGABRT"),
        ("os._exit(3)", "pair ended with status 3"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "pair was stopped for 3 s"),
        (
            "watchdog._child.kill(); watchdog._child.wait(); watchdog.beat(); os._exit(3)",
            "pair ended with status 3",
        ),
        ("watchdog.give_up('has no\\n GPU any more'); time.sleep(60)", "pair has no GPU any more"),
    ],
)
def test_the_server_ends_with_its_process(tmp_path: Path, told: str, said: str) -> None:
    server = serve(tmp_path, told)

    assert server.wait(240) == -signal.SIGKILL
    _, errors = server.communicate(timeout=240)
    assert f"trtspec: {said}, so this server ends\n" in errors
    assert_nothing_left(server)


def test_a_process_that_ends_as_it_should_leaves_the_server_alone(tmp_path: Path) -> None:
    server = serve(
        tmp_path, f"watchdog.beat(); watchdog.close(); open({str(tmp_path / 'done')!r}, 'w').close()"
    )
    deadline = time.monotonic() + 240
    while not (tmp_path / "done").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert server.poll() is None
    server.kill()
    assert server.communicate()[1] == ""
    assert_nothing_left(server)


def test_a_server_that_is_killed_takes_a_stopped_process_along(tmp_path: Path) -> None:
    server = serve(tmp_path, "os.kill(os.getpid(), signal.SIGSTOP)")
    deadline = time.monotonic() + 240
    while not any(state == "T" for state in states(server)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    server.kill()
    server.wait()
    assert_nothing_left(server)


def states(server: subprocess.Popen[str]) -> list[str]:
    """Of all processes of its session."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[3]) == server.pid:
            found.append(words[0])
    return [state for state in found if state not in "ZX"]


def assert_nothing_left(server: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while states(server):
        assert time.monotonic() < deadline
        time.sleep(0.02)


class TestWatch:
    RUNNING, STOPPED, TRACED = (ProcessStat(letter, "1", 0) for letter in "STt")

    def test_only_silence_after_a_beat_is_a_problem(self) -> None:
        watch = Watch(0)
        watch.look(self.RUNNING, 1000)
        assert watch.problem is None
        watch.hear(b"be", 1000)
        watch.hear(b"at\n", 1000)
        watch.look(self.RUNNING, 1029)
        assert watch.problem is None
        watch.look(self.RUNNING, 1031)
        assert watch.problem == "has not answered for 30 s"

    def test_a_debugger_may_stop_it(self) -> None:
        watch = Watch(0)
        watch.look(self.TRACED, 100)
        assert watch.problem is None

    def test_a_short_stop_is_none(self) -> None:
        watch = Watch(0)
        for now in (2, 4, 6):
            watch.look(self.STOPPED, now)
            watch.look(self.RUNNING, now + 0.5)
        assert watch.problem is None

    @pytest.mark.parametrize(
        ("status", "said"),
        [
            (0x0300, "ended with status 3"),
            (9, "was killed by SIGKILL"),
            (0x80 | 11, "was killed by SIGSEGV"),
            (40, "was killed by signal 40"),
        ],
    )
    def test_how_it_ended(self, status: int, said: str) -> None:
        watch = Watch(0)
        watch.look(ProcessStat("Z", "1", status), 1)
        assert watch.problem == said
