"""A deployment of the tiny pair for benches of what stands in front of Triton."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.conftest import RECIPE, TRTSPEC, Deploy, Deployer, wait_until
from tests.support.processes import command_line


@contextmanager
def deployed(*, with_api: bool = False) -> Iterator[Deploy]:
    """Serves the build that the command line names, or a fresh one of the tiny pair; ends it afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        build = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder, "build")
        if len(sys.argv) == 1:
            subprocess.run([TRTSPEC, "build", RECIPE, "--output", build], check=True, capture_output=True)
        deployer = Deployer(Path(folder))
        deploy = deployer(build, with_api=with_api)
        try:
            wait_until(lambda: deploy.is_ready, "the server ready")
            yield deploy
        finally:
            deployer.end_all()


def port_behind(deploy: Deploy, protocol: str) -> int:
    """The port of Triton itself behind a front, `http` or `grpc`."""
    found = re.search(rf"--{protocol}-port=(\d+)", " ".join(command_line(min(deploy.server_pids()))))
    assert found is not None
    return int(found[1])


def processor_s(pid: int) -> float:
    """The processor time that a process has taken so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100
