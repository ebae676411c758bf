"""A cluster whose time passes when the code under test waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.kubernetes.emulator import NAMESPACE, Emulator
from tests.fakes.kubernetes.server import served
from tests.support import helm
from tests.unit.cluster.kubernetes.builds import RECIPES
from trtspec.cluster import jobs as cluster_jobs
from trtspec.cluster.kubernetes import jobs, release
from trtspec.cluster.kubernetes.cluster import Cluster, connect
from trtspec.cluster.kubernetes.jobs import KubernetesJobs


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
    monkeypatch.setattr(release, "time", Clock(made))
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
        monkeypatch.setenv("PATH", helm.path())
        yield file


@pytest.fixture
def cluster(kubeconfig: Path) -> Cluster:
    return connect(None, None)


@pytest.fixture
def scheduler(cluster: Cluster, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> KubernetesJobs:
    """The cluster as a scheduler of builds."""
    clock = Clock(emulator)
    monkeypatch.setattr(jobs, "time", clock)
    monkeypatch.setattr(cluster_jobs, "monotonic", clock.monotonic)
    monkeypatch.setattr(cluster_jobs, "sleep", clock.sleep)
    return KubernetesJobs(lambda: cluster, "0.1.0", shares_files=True)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe with models of the Hub."""
    file = tmp_path / "recipe.yaml"
    file.write_text((RECIPES / "llama-3.1-8b-h100.yaml").read_text())
    return file
