"""Writes a server's output to files, and follows them."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from trtspec.base.tail import Tail, last_bytes

KEPT = 4 << 20
"""So many bytes at the end of a log stay, to say why a server has ended."""

# The last lines come from this many bytes.
_LAST = 1 << 16
_LOOK_S = 0.2
_STEP = 1 << 20
# linux/falloc.h
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def begin_log(log: Path) -> None:
    """Starts an empty log; keeps the earlier deployment's log beside it, since it may explain a crash."""
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    log.touch()


def last_lines(log: Path, count: int = 12) -> list[str]:
    """Returns the end of a log, without Triton's tables."""
    lines = last_bytes(log, _LAST).splitlines()
    return [line for line in lines if line and line[0] not in "+|"][-count:]


class LogFollower:
    """A context in which a thread calls `say` with each line of the logs and its source.

    `logs` names the files, which need not exist yet. Lines that were passed on are freed on the disk: a pod
    has no room for a log that grows for ever. The files keep their size, with zeros at the beginning.
    """

    def __init__(self, logs: Mapping[str, Path], say: Callable[[str, str], None]) -> None:
        self._tails = {name: Tail(file) for name, file in logs.items()}
        self._logs, self._freed, self._say = logs, dict.fromkeys(logs, 0), say
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="trtspec-logs", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            for name, tail in self._tails.items():
                self._pass_on(name, tail.lines())
                if tail.offset - KEPT - self._freed[name] > _STEP:
                    self._freed[name] = tail.offset - KEPT
                    free(self._logs[name], self._freed[name])
        for name, tail in self._tails.items():
            self._pass_on(name, tail.rest())

    def _pass_on(self, name: str, lines: list[str]) -> None:
        for line in lines:
            self._say(name, line)


def free(file: Path, end: int) -> None:
    """Frees the blocks of a file up to `end`, which then reads as zeros; if the file system cannot do that,
    they stay."""
    libc = ctypes.CDLL(None)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    descriptor = os.open(file, os.O_WRONLY)
    try:
        libc.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, 0, end)
    finally:
        os.close(descriptor)
