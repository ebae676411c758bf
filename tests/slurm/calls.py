"""Calls of `trtspec build --on slurm` as processes whose lines are heard while they run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.slurm.cluster import wait_for

ROOT = Path(__file__).parents[2]


class Call:
    """A call that runs, or has ended."""

    def __init__(self, folder: Path, environment: dict[str, str], *words: str) -> None:
        self._said = folder / f"said-{len(list(folder.glob('said-*')))}"
        variables = {**environment, "PYTHONPATH": f"{ROOT}:{environment.get('PYTHONPATH', '')}", "CI": "1"}
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trtspec", "build", *words],
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def hears(self, line: str, seconds: float = 120) -> None:
        """Waits for words on stderr."""
        try:
            wait_for(lambda: line in self.said or self.process.poll() is not None, seconds)
        except AssertionError:
            raise AssertionError(f"{line!r} was not said in:\n{self.said}") from None
        assert line in self.said, self.said

    def id_of(self, title: str) -> str:
        """The id of a job that the call has told of."""
        return next(
            line.removeprefix(f"{title}: job ").split(",")[0].split()[0]
            for line in self.said.splitlines()
            if line.startswith(f"{title}: job ")
        )

    def press_ctrl_c(self) -> None:
        os.kill(self.process.pid, signal.SIGINT)

    def ends(self, status: int, seconds: float = 300) -> str:
        """Waits for its end, and returns what it printed on stdout."""
        stdout, _ = self.process.communicate(timeout=seconds)
        assert self.process.returncode == status, self.said
        return stdout.decode()
