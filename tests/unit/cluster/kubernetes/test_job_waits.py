"""Jobs of builds that a cluster does not let run, or does not tell of, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.kubernetes.emulator import Emulator, Refused
from tests.fakes.kubernetes.scripts import (
    Script,
    finishing,
    no_image,
    unschedulable,
)
from tests.unit.cluster.kubernetes.jobs import Heard, job_of, pods, run, scripted, while_waiting
from trtspec.base.errors import JobError
from trtspec.cluster.jobs import ClusterJob, JobState, Phase
from trtspec.cluster.kubernetes.cluster import Cluster
from trtspec.cluster.kubernetes.jobs import KubernetesJobs


def test_an_image_that_is_not_there_ends_it(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    scripted(emulator, no_image("manifest unknown"))
    job = job_of(recipe)
    standing, _ = run(scheduler, job)
    state = standing.state(job.name)
    assert state.phase is Phase.FAILED
    assert state.reason == "its image cannot be pulled: manifest unknown"
    assert "kubernetes.image" in str(state.repair)
    # The job waits on in the cluster; after the repair another takes its place.
    recipe.write_text(recipe.read_text() + "kubernetes: {image: 'registry.example.org/trtspec:1'}\n")
    scripted(emulator, finishing())
    repaired = job_of(recipe)
    standing, _ = run(scheduler, repaired)
    assert standing.state(job.name).phase is Phase.DONE
    (container,) = emulator.manifest("jobs", job.name)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.org/trtspec:1"


def test_a_job_waits_for_a_node(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    heard = while_waiting(emulator, lambda: born_again(emulator, finishing()))
    scripted(emulator, unschedulable("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))
    run(scheduler, job_of(recipe, gpus=1), heard=heard)
    assert "waits: build: no node takes it: 0/3 nodes are available" in heard.said
    assert heard.events[-1][0] == "done"


def born_again(emulator: Emulator, script: Script) -> None:
    for pod in emulator.controllers.pods:
        pod.script, pod.born = script, emulator.now


def test_a_job_waits_for_a_quota(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    words = (
        'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1,'
        " used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4"
    )
    emulator.at_pods = lambda template, number: words

    def relent() -> None:
        emulator.at_pods = lambda template, number: None

    scripted(emulator, finishing())
    heard = while_waiting(emulator, relent)
    run(scheduler, job_of(recipe, gpus=1), heard=heard)
    assert "waits: build: its pods are rejected: " in heard.said
    assert "gpus" in heard.said
    assert heard.events[-1][0] == "done"


def test_a_queue_of_kueue_lets_a_job_in(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path, cluster: Cluster
) -> None:
    recipe.write_text(recipe.read_text() + "kubernetes: {build: {queue: engines}}\n")
    job = job_of(recipe)

    def admit() -> None:
        assert pods(emulator) == []
        stored = emulator.stored["serving", "jobs", job.name]
        stored.merge({"spec": {"suspend": False}}, "kueue")
        emulator.settle()

    scripted(emulator, finishing())
    heard = while_waiting(emulator, admit)
    run(scheduler, job, heard=heard)
    assert "waits: build: waits in the queue engines" in heard.said
    assert heard.events[-1][0] == "done"


def test_a_webhook_that_denies(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    def deny(manifest: dict[str, Any]) -> None:
        if manifest["kind"] == "Job":
            words = 'admission webhook "validate.kyverno.svc" denied the request: no team label'
            raise Refused(400, "BadRequest", words)

    emulator.at_apply = deny
    with pytest.raises(JobError, match="no team label"):
        run(scheduler, job_of(recipe))


def test_a_job_that_was_deleted_is_looked_up_in_the_store(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path, cluster: Cluster
) -> None:
    job = job_of(recipe)
    scripted(emulator, finishing(after=100.0))

    def delete() -> None:
        del emulator.stored["serving", "jobs", job.name]

    heard = while_waiting(emulator, delete)
    standing, _ = run(scheduler, job, heard=heard)
    assert standing.state(job.name).phase is Phase.FAILED
    assert standing.state(job.name).reason == "is no longer in the cluster"


def test_a_server_that_is_away_for_a_while(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    def go_away() -> None:
        emulator.is_busy = True

    def come_back(now: float) -> None:
        if now > 60:
            emulator.is_busy = False

    emulator.at_time = come_back
    scripted(emulator, finishing(after=30.0))
    heard = while_waiting(emulator, go_away)
    run(scheduler, job_of(recipe), heard=heard)
    assert "unanswered: the cluster is busy (HTTP 503): etcdserver: leader changed" in heard.said
    assert heard.events[-1][0] == "done"


def test_rights_that_are_missing(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    emulator.forbidden.add(("list", "jobs"))
    with pytest.raises(JobError, match="jane"):
        run(scheduler, job_of(recipe))


def test_a_server_that_is_away_when_a_job_is_due(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    class Leaving(Heard):
        def changed(self, job: ClusterJob, state: JobState) -> None:
            super().changed(job, state)
            emulator.is_busy = state.phase is Phase.DONE

    def come_back(now: float) -> None:
        if now > 60:
            emulator.is_busy = False

    emulator.at_time, heard = come_back, Leaving()
    scripted(emulator, finishing())
    convert = job_of(recipe, "convert")
    run(scheduler, convert, job_of(recipe, "build", after=(convert.name,)), heard=heard)
    assert "unanswered: the cluster is busy (HTTP 503)" in heard.said
    assert heard.events[-1][:2] == ("done", "build")
