"""A cluster whose time passes when the code under test waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.kubernetes.emulator import NAMESPACE, Emulator
from tests.fakes.kubernetes.server import served
from trtspec.kubernetes import deployed, waiting
from trtspec.kubernetes.cluster import Cluster
from trtspec.kubernetes.connection import connect


class Clock:
    """What `time` is to who waits."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def monotonic(self) -> float:
        return self._emulator.now

    def sleep(self, seconds: float) -> None:
        self._emulator.pass_time(seconds)


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Emulator:
    made = Emulator()
    for module in (waiting, deployed):
        monkeypatch.setattr(module, "time", Clock(made))
    return made


@pytest.fixture
def kubeconfig(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The kubeconfig of the cluster, in the environment too."""
    file = tmp_path / "kubeconfig"
    with served(emulator) as url:
        file.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: lab\n"
            f"contexts: [{{name: lab, context: {{cluster: lab, user: jane, namespace: {NAMESPACE}}}}}]\n"
            f"clusters: [{{name: lab, cluster: {{server: '{url}'}}}}]\n"
            "users: [{name: jane, user: {token: secret}}]\n"
        )
        monkeypatch.setenv("KUBECONFIG", str(file))
        yield file


@pytest.fixture
def cluster(kubeconfig: Path) -> Cluster:
    return connect(None, None)
