"""Logs that are passed on while they grow, and do not fill the disk."""

from __future__ import annotations

import os
from pathlib import Path

from tests.e2e.conftest import wait_until
from trtspec.deployment.server import TAIL_BYTES, LogFollower, last_lines


def test_each_line_is_passed_on_once_and_whole(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    logs = {"triton": tmp_path / "triton.log", "openai": tmp_path / "openai.log"}
    with LogFollower(logs, lambda name, line: said.append((name, line))), logs["triton"].open("w") as stream:
        stream.write("one\n\ntw")
        stream.flush()
        wait_until(lambda: bool(said), "the first line")
        logs["openai"].write_text("later\n")
        wait_until(lambda: len(said) == 2, "the other log")
        stream.write("o\nthree")
        stream.flush()
        wait_until(lambda: len(said) == 3, "the second line")
    assert said == [("triton", "one"), ("openai", "later"), ("triton", "two"), ("triton", "three")]


def test_a_followed_log_frees_the_disk_space_of_lines_already_passed_on(tmp_path: Path) -> None:
    log, count = tmp_path / "log", 0
    line = "a" * 1023 + "\n"

    def say(name: str, text: str) -> None:
        nonlocal count
        assert text == line[:-1]
        count += 1

    with LogFollower({"triton": log}, say), log.open("a") as stream:
        for megabyte in range(1, 21):
            stream.write(line * 1024)
            stream.flush()
            wait_until(lambda: count == megabyte * 1024, "a megabyte")  # noqa: B023
        wait_until(lambda: _room(log) <= TAIL_BYTES + (3 << 20), "less room")
    assert log.stat().st_size == 20 << 20
    assert last_lines(log, 2) == [line[:-1]] * 2


def _room(file: Path) -> int:
    # Blocks are allotted when they are written.
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
    return file.stat().st_blocks * 512
