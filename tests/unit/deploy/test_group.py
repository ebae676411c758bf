"""A server's processes on this machine end together."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.e2e.conftest import wait_until
from trtspec.deploy.group import ProcessGroup
from trtspec.serving.triton.watching import stat

# The kernel takes a while to free the memory of a child, which is no child of this process.
SERVER = """
import os, time
if not os.fork():
    held = bytearray(512 << 20)
    held[::4096] = b"x" * len(held[::4096])
    print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_whoever_kills_it_finds_its_memory_free(tmp_path: Path) -> None:
    log = tmp_path / "log"
    group = ProcessGroup((sys.executable, "-c", SERVER), tmp_path, os.environ, log)
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"), "a process with memory")

    group.kill()

    child = stat(int(log.read_text()))
    assert child is None or child.state == "Z"
    assert group.poll() == -9
