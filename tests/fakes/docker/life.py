"""A container from its start to its end, and what is known of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.fakes.docker.words import ROOT, fail


def folder_of(name: str) -> Path:
    """Of a container's name or id."""
    with suppress(ValueError):
        name = bytes.fromhex(name).decode()
    return ROOT / "containers" / name


def state(name: str) -> dict[str, Any]:
    """Of a container; an error of the daemon if there is none."""
    if not exists(name):
        fail(f"Error response from daemon: No such container: {name}")
    found: dict[str, Any] = json.loads((folder_of(name) / "state.json").read_text())
    return found


def exists(name: str) -> bool:
    """One of `--rm` is gone when it has ended."""
    file = folder_of(name) / "state.json"
    return file.is_file() and not (status_of(name) is not None and json.loads(file.read_text())["AutoRemove"])


def status_of(name: str) -> int | None:
    file = folder_of(name) / "status"
    return int(file.read_text()) if file.exists() else None


def restarts_of(name: str) -> int:
    file = folder_of(name) / "restarts"
    return int(file.read_text()) if file.exists() else 0


def shim(words: list[str]) -> None:
    """Runs a container to its end, and again where its policy says so."""
    (name,) = words
    folder = folder_of(name)
    (folder / "restarts").write_text("0")
    while run_once(name):
        (folder / "restarts").write_text(str(int((folder / "restarts").read_text()) + 1))


def run_once(name: str) -> bool:
    """Whether it is to be run again."""
    folder, content = folder_of(name), state(name)
    command = content["Config"]["Cmd"]
    executable = shutil.which(Path(command[0]).name, path=content["environment"]["PATH"])
    with (folder / "log").open("ab") as log:
        if executable is None:
            log.write(f"[FATAL tini (7)] exec {command[0]} failed: No such file or directory\n".encode())
            log.flush()  # Who sees the status reads the log to its end.
            (folder / "status.new").write_text("127")
            (folder / "status.new").rename(folder / "status")
            (folder / "pid").write_text("0")
            return False
        process = subprocess.Popen(
            [executable, *command[1:]],
            cwd=content["folder"],
            env=content["environment"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        (folder / "pid.new").write_text(str(process.pid))
        (folder / "pid.new").rename(folder / "pid")
        status = process.wait()
    # The other processes of a container end with its first, and so does its shared memory.
    kill_group(process.pid, signal.SIGKILL)
    for region in regions_of(process.pid):
        region.unlink(missing_ok=True)
    policy = (folder / "policy").read_text().partition(":") if folder.exists() else ("no", "", "0")
    restarts = restarts_of(name)
    is_failure = status != 0 and not (folder / "stopped").exists()
    if folder.exists() and policy[0] == "on-failure" and is_failure and restarts < int(policy[2]):
        return True
    if folder.exists():
        (folder / "status.new").write_text(str(status if status >= 0 else 128 - status))
        (folder / "status.new").rename(folder / "status")
    return False


def regions_of(pid: int) -> list[Path]:
    """The shared memory of a container with this first process, as an image's program names it."""
    return list(Path("/dev/shm").glob(f"*_container_{pid}_*"))


def kill_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def follow(name: str, *, from_end: bool = False) -> None:
    """Writes a log, which knows no times, to stdout until the container has ended."""
    with (folder_of(name) / "log").open("rb") as log:
        log.seek(0, os.SEEK_END if from_end else os.SEEK_SET)
        has_ended = False
        while not has_ended:
            has_ended = status_of(name) is not None or not folder_of(name).exists()
            sys.stdout.buffer.write(log.read())
            sys.stdout.flush()
            time.sleep(0.01)


def end(name: str, seconds: float) -> None:
    """SIGTERM to the first process, and after so many seconds SIGKILL to all."""
    folder = folder_of(name)
    pid = int((folder / "pid").read_text())
    (folder / "stopped").touch()
    if status_of(name) is not None:
        return
    deadline = time.monotonic() + seconds
    if seconds:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        while status_of(name) is None and time.monotonic() < deadline:
            time.sleep(0.01)
    if status_of(name) is None:
        kill_group(pid, signal.SIGKILL)
        while status_of(name) is None:
            time.sleep(0.01)
