from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trtspec.base.errors import UnavailableError
from trtspec.pipeline.run.build_lock import only_build
from trtspec.pipeline.run.launcher import LocalLauncher

HOLD = """
import sys, time
from pathlib import Path
from trtspec.pipeline.run.build_lock import only_build
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
