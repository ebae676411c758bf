"""Processes of this machine as /proc tells of them, those of strangers included."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path


def command_line(pid: int) -> list[str]:
    """Its words, which need not be UTF-8; one empty word when it has ended."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return [""]
    return os.fsdecode(line).split("\0")


def numbers_of(pid: int) -> dict[str, int]:
    """The numbers of /proc/PID/status by their names; sizes are in KiB. Raises OSError when it has ended."""
    found = re.findall(r"^(\w+):\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return {name: int(number) for name, number in found}


def command_lines() -> Iterator[tuple[int, list[str]]]:
    """Of all processes, with their ids."""
    for process in Path("/proc").glob("[0-9]*"):
        yield int(process.name), command_line(int(process.name))


def naming(path: Path) -> list[str]:
    """The command lines of the other processes that know of a path."""
    lines = [" ".join(line) for pid, line in command_lines() if pid != os.getpid()]
    return [line for line in lines if str(path) in line]
