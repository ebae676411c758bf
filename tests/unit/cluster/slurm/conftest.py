from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

FAKE = Path(__file__).parents[3] / "fakes/slurm.py"
COMMANDS = ("sbatch", "squeue", "scontrol", "sacct", "scancel")


class Cluster:
    """The stand-in's folder, and how its jobs end."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._bin = folder, folder / "bin"
        self._bin.mkdir(parents=True)
        for name in COMMANDS:
            file = self._bin / name
            file.write_text(f"#!{sys.executable}\n{FAKE.read_text()}")
            file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{self._bin}:{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_SLURM", str(folder))
        self.life({})
        self.trouble("")

    def life(self, states: Mapping[str, list[str]]) -> None:
        """The states of jobs, by the ends of their titles."""
        (self.folder / "life.json").write_text(json.dumps(states))

    def trouble(self, said: str) -> None:
        (self.folder / "trouble").write_text(said)

    def calls(self, command: str) -> list[list[str]]:
        """The words of each call of a command."""
        every = [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]
        return [words for name, *words in every if name == command]

    @property
    def submitted(self) -> list[str]:
        """The titles of the jobs, in order."""
        words = [word for call in self.calls("sbatch") for word in call]
        return [word.removeprefix("--comment=") for word in words if word.startswith("--comment=")]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A login node whose cluster starts what is due each time that somebody looks."""
    monkeypatch.setattr("trtspec.cluster.jobs.sleep", lambda _: None)
    return Cluster(tmp_path / "cluster", monkeypatch)
