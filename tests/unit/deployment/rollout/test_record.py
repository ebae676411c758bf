"""The file under writers that are killed, and readers that never see half of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from trtspec.base.errors import UnavailableError
from trtspec.deployment.rollout.steps import RolloutRecord, read_record, write_record
from trtspec.serving.rollout.state import RolloutFile, RolloutReading, RolloutState

OLD = RolloutRecord(RolloutState("shadow", 0.5), "2026-01-01T00:00:00Z", {"a": 1.5, "b{plain}": 2.0})
NEW = RolloutRecord(
    RolloutState(share=0.25), "2026-01-02T00:00:00Z", {f"name-{n}": float(n) for n in range(300)}
)
WRITER = """
import sys
from pathlib import Path
from tests.unit.deployment.rollout.test_record import NEW, OLD
from trtspec.deployment.rollout.steps import write_record
print("begun", flush=True)
while True:
    for state in (NEW, OLD):
        write_record(Path(sys.argv[1]), state)
"""


def test_what_is_written_is_read_by_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "rollout.json"
    assert read_record(path) is None
    for each in (OLD, NEW, replace(OLD, counted=None)):
        write_record(path, each)
        assert read_record(path) == each
        assert RolloutFile(path).look() == RolloutReading(each.state)


def test_a_file_of_somebody_else_has_no_past(tmp_path: Path) -> None:
    """As a ConfigMap would be written by hand."""
    path = tmp_path / "rollout.json"
    path.write_text('{"version": 1, "mode": "speculate", "share": 0.1, "since": 5, "counted": ["x"]}')
    assert read_record(path) == RolloutRecord(RolloutState(share=0.1))


def test_a_broken_one_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "rollout.json"
    path.write_text("{")
    with pytest.raises(UnavailableError, match="is not JSON") as raised:
        read_record(path)
    assert raised.value.subject == str(path)
    assert "rollout off" in (raised.value.repair or "")


def test_a_writer_that_is_killed_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    """Killed at any moment of many writes; meanwhile the file is never anything else."""
    path, dice, seen = tmp_path / "rollout.json", random.Random(2), set()
    write_record(path, OLD)
    for _ in range(6):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"begun\n"
        until = time.monotonic() + dice.uniform(0.01, 0.1)
        while time.monotonic() < until:
            seen.add(read_record(path) == NEW)
            assert read_record(path) in (OLD, NEW)
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
        assert read_record(path) in (OLD, NEW)
        # What it left half-made is in nobody's way.
        write_record(path, OLD)
        assert read_record(path) == OLD
    assert seen == {True, False}


def test_two_who_move_wait_for_each_other(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from trtspec.deployment.rollout.steps import locked\n"
        "with locked(Path(sys.argv[1])): print('has it', flush=True); sys.stdin.readline()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(1.0)
    holder.kill()  # The kernel frees what it held.
    holder.communicate()
    assert other.stdout.readline() == b"has it\n"
    other.communicate(b"\n")
    assert other.returncode == 0
