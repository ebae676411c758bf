"""Many processes that want one engine: `many_builders.py URL FOLDER LOG COUNT DEATHS MODE`.

The first `DEATHS` of those who begin to build are killed while they do. With the mode `names` the file system
is one that cannot create a file exclusively, and is slow at random. `LOG` has a line of each event: `begins`,
`ends`, `dies` or `finds`, and the process.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.pipeline.store.conftest import H200, entry_of
from trtspec.base.progress import no_progress
from trtspec.pipeline.store import files, lease
from trtspec.pipeline.store.store import Store
from trtspec.pipeline.store.transfer import push

KEY = "1" * 64
WORK_S = 0.3


def note(log: Path, event: str) -> None:
    with log.open("a") as stream:  # one write of a line that is appended
        stream.write(f"{event} {os.getpid()}\n")


def slow(function: Callable[..., Any]) -> Callable[..., Any]:
    def delayed(*args: Any, **options: Any) -> Any:
        time.sleep(random.random() ** 4 * lease.SETTLE_S * 2)
        result = function(*args, **options)
        time.sleep(random.random() ** 4 * lease.SETTLE_S * 2)
        return result

    return delayed


def build(url: str, folder: Path, log: Path, deaths: int) -> None:
    store = Store(url)
    with lease.leased(store, H200, KEY, "target", no_progress) as mine:
        if mine is None:
            note(log, "finds")
            return
        note(log, "begins")
        dies = log.read_text().count("dies") < deaths
        time.sleep(WORK_S)
        if dies:
            note(log, "dies")
            os.kill(os.getpid(), signal.SIGKILL)
        assert not mine.is_lost
        note(log, "ends")
        push(store, entry_of(folder), folder, lambda *_: None)


def main(url: str, folder: str, log: str, count: str, deaths: str, mode: str) -> None:
    if url.startswith("s3"):
        import s3fs  # noqa: F401 - once, for all of them
    lease.EXPIRY_S, lease.RENEWAL_S, lease.POLL_S, lease.SETTLE_S = 6.0, 0.2, 0.25, 0.1
    if mode == "names":
        files._EXCLUSIVE = frozenset()
        for name in ("find", "read", "write"):
            setattr(files.Files, name, slow(getattr(files.Files, name)))
    children = []
    for number in range(int(count)):
        if (child := os.fork()) == 0:
            random.seed(number)
            status = 1
            try:
                build(url, Path(folder), Path(log), int(deaths))
                status = 0
            finally:
                if status:
                    sys.excepthook(*sys.exc_info())
                os._exit(status)
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(*statuses)


if __name__ == "__main__":
    main(*sys.argv[1:])
