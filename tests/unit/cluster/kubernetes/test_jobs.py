"""Jobs of builds on a cluster: in order, retried, ended, told with the reason, found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.kubernetes.emulator import Emulator
from tests.fakes.kubernetes.scripts import (
    Script,
    disrupted,
    evicted,
    failing,
    finishing,
)
from tests.unit.cluster.kubernetes.jobs import Heard, job_of, pods, run, scripted, while_waiting
from trtspec.cluster.jobs import JobStatus, Phase, cancel
from trtspec.cluster.kubernetes.cluster import Cluster
from trtspec.cluster.kubernetes.jobs import KubernetesJobs


def test_each_waits_for_those_before_it(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    scripted(emulator, finishing("converted\n"), finishing("built\n"), finishing("pushed\n"))
    convert = job_of(recipe, "convert")
    build = job_of(recipe, "build", gpus=1, after=(convert.name,))
    pair = job_of(recipe, "pair", after=(build.name,))
    standing, heard = run(scheduler, convert, build, pair)
    assert [event[:2] for event in heard.events if event[0] in ("submitted", "done")] == [
        *(("submitted", "convert"), ("done", "convert")),
        *(("submitted", "build"), ("done", "build")),
        *(("submitted", "pair"), ("done", "pair")),
    ]
    assert ("runs", "build", "") in heard.events
    assert standing.state(build.name).node == "gpu-1"
    assert convert.log.read_text().splitlines()[1:] == ["converted"]
    assert emulator.names("networkpolicies") == ["llama-3-1-8b-h100-build"]


def test_a_log_grows_while_its_job_runs_and_no_line_is_there_twice(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    lines = [f"line {number}" for number in range(40)]
    scripted(emulator, finishing("\n".join(lines) + "\n", after=30.0))
    job, seen, heard = job_of(recipe), set[int](), Heard()
    heard.on_look = lambda: seen.add(len(job.log.read_text().splitlines()) if job.log.exists() else 0)
    run(scheduler, job, heard=heard)
    assert job.log.read_text().splitlines() == [f"pod {pods(emulator)[0]} on gpu-1:", *lines]
    assert len(seen) > 5


def test_a_progress_bar_in_a_log_ends_no_line(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    """Its carriage returns are no ends of lines, and what follows them is no time."""
    lines = [f"line {number}\rLoading shards: {number}%\r Done\u2028" for number in range(20)]
    scripted(emulator, finishing("\n".join(lines) + "\n", after=15.0))
    job = job_of(recipe)
    run(scheduler, job)
    with job.log.open(newline="\n") as log:
        assert log.read().split("\n") == [f"pod {pods(emulator)[0]} on gpu-1:", *lines, ""]


@pytest.mark.parametrize(
    ("script", "reason", "repair"),
    [
        (failing(1, "error: no GPU\n"), "ended with status 1", None),
        (failing(137, reason="OOMKilled"), "took more memory than its limit", "kubernetes.build.memory"),
    ],
)
def test_what_another_try_does_not_change_is_final(
    emulator: Emulator,
    scheduler: KubernetesJobs,
    recipe: Path,
    script: Script,
    reason: str,
    repair: str | None,
) -> None:
    scripted(emulator, script)
    build = job_of(recipe)
    pair = job_of(recipe, "pair", after=(build.name,))
    standing, _ = run(scheduler, build, pair)
    state = standing.state(build.name)
    assert (state.phase, state.reason, state.restarts) == (Phase.FAILED, reason, 0)
    assert repair is None or repair in str(state.repair)
    assert len(pods(emulator)) == 1
    assert standing.state(pair.name).phase is Phase.CANCELLED
    if reason.endswith("1"):
        assert build.log.read_text().endswith("error: no GPU\n")


def test_a_crash_is_tried_again_a_few_times(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    scripted(emulator, failing(139, "crashed\n"))
    job = job_of(recipe)
    standing, _ = run(scheduler, job)
    state = standing.state(job.name)
    assert (state.phase, state.reason, state.restarts) == (Phase.FAILED, "was killed by signal 11", 3)
    assert job.log.read_text().count("crashed") == 4


def test_a_pod_that_gives_its_node_away_is_followed_by_another(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    scripted(emulator, *[disrupted()] * 6, finishing("built\n"))
    job = job_of(recipe)
    standing, _ = run(scheduler, job)
    assert standing.state(job.name).phase is Phase.DONE
    assert len(pods(emulator)) == 7
    assert job.log.read_text().endswith("built\n")


def test_an_eviction_is_told(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    scripted(emulator, evicted("The node was low on resource: ephemeral-storage."))
    job = job_of(recipe)
    standing, _ = run(scheduler, job)
    reason = standing.state(job.name).reason
    assert reason == "was evicted from its node: The node was low on resource: ephemeral-storage."


def test_a_job_that_takes_too_long(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    recipe.write_text(recipe.read_text() + "kubernetes: {build: {limit_hours: 1}}\n")
    scripted(emulator, finishing(after=5000.0))
    job = job_of(recipe)

    def an_hour_later() -> None:
        emulator.now += 3590

    standing, _ = run(scheduler, job, heard=while_waiting(emulator, an_hour_later))
    state = standing.state(job.name)
    assert (state.phase, state.reason) == (Phase.FAILED, "took longer than its limit")
    assert "limit_hours" in str(state.repair)
    assert 3600 <= emulator.now < 3700


def test_a_second_call_finds_what_runs(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path, cluster: Cluster
) -> None:
    scripted(emulator, finishing("one\ntwo\n", after=60.0))
    job, heard = job_of(recipe), Heard()

    def interrupt() -> None:
        if emulator.now > 10:
            raise KeyboardInterrupt

    heard.on_look = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(scheduler, job, heard=heard)
    again = KubernetesJobs(lambda: cluster, "0.1.0", shares_files=True)
    _, heard = run(again, job)
    assert [event[0] for event in heard.events] == ["found", "runs", "done"]
    assert len(pods(emulator)) == 1
    assert job.log.read_text().splitlines()[1:] == ["one", "two"]


def test_two_calls_at_once_make_one_job(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path, cluster: Cluster
) -> None:
    scripted(emulator, finishing())
    job = job_of(recipe)
    other = KubernetesJobs(lambda: cluster, "0.1.0", shares_files=True)
    assert scheduler.find([job.name]) == other.find([job.name]) == {}
    assert scheduler.submit(job, []) == other.submit(job, []) == job.name
    assert len(pods(emulator)) == 1


def test_what_failed_is_made_anew(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    scripted(emulator, failing(1, "first\n"), finishing("second\n"))
    job = job_of(recipe)
    standing, _ = run(scheduler, job)
    assert standing.state(job.name).phase is Phase.FAILED
    standing, _ = run(scheduler, job)
    assert standing.state(job.name).phase is Phase.DONE
    assert standing.state(job.name).restarts == 0


def test_cancelling(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path, cluster: Cluster) -> None:
    scripted(emulator, finishing(after=100.0))
    job = job_of(recipe)
    standing = JobStatus([job])
    standing.has(job.name, scheduler.submit(job, []))
    assert scheduler.how_to_cancel([job.name]) == (
        f"kubectl --context lab --namespace serving delete job {job.name}"
    )
    assert cancel(standing, scheduler) == [job.name]
    assert emulator.names("jobs") == []
    assert emulator.pods() == []
