"""Jobs from their submission to their end, with a scheduler in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.command_line import trtspec
from tests.fakes.scheduler import FakeScheduler
from tests.unit.cluster.jobs.conftest import Look
from trtspec.base.errors import UnavailableError
from trtspec.cluster.jobs import ClusterJob, JobState, JobStatus, Phase, cancel, follow, plan_jobs
from trtspec.pipeline.store.store import Store

DONE = JobState(Phase.DONE)
KILLED = JobState(Phase.FAILED, "was killed by SIGKILL", node="n1")
IN_ORDER = ["target: convert", "target: build", "draft: convert", "draft: build", "pair"]


class Heard:
    """Remembers what it was told, by titles without the recipe's name."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def submitted(self, job: ClusterJob, job_id: str) -> None:
        self._hear("submitted", job)

    def found(self, job: ClusterJob, job_id: str) -> None:
        self._hear("found", job)

    def changed(self, job: ClusterJob, state: JobState) -> None:
        self._hear(f"{state.phase}{f' ({state.reason})' if state.reason else ''}", job)

    def looked(self) -> None:
        self.events.append("looked")

    def unanswered(self, error: UnavailableError) -> None:
        self.events.append(str(error))

    def _hear(self, what: str, job: ClusterJob) -> None:
        self.events.append(f"{job.title.partition(' ')[2]} {what}")


@pytest.fixture
def standing(h200_recipe: Path, wanted: Look) -> JobStatus:
    return JobStatus(plan_jobs([wanted(h200_recipe)], "s3://engines", shares_files=True))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.cluster.jobs.sleep", lambda _: None)


def followed(standing: JobStatus, scheduler: FakeScheduler, store: Store) -> list[str]:
    heard = Heard()
    follow(standing, scheduler, store, heard)
    return heard.events


def titles(jobs: list[ClusterJob]) -> list[str]:
    return [job.title.partition(" ")[2] for job in jobs]


def test_a_scheduler_that_keeps_the_order_has_all_at_once(standing: JobStatus, store: Store) -> None:
    scheduler = FakeScheduler(lambda job: DONE)
    events = followed(standing, scheduler, store)
    assert events[:5] == [f"{title} submitted" for title in IN_ORDER]
    assert [after for _, after in scheduler.submitted] == [(), ("id-0",), (), ("id-2",), ("id-1", "id-3")]
    assert [event for event in events if event.endswith(" done")] != []
    assert standing.is_over
    assert standing.failed == []


def test_another_gets_a_job_when_those_before_it_are_done(standing: JobStatus, store: Store) -> None:
    scheduler = FakeScheduler(lambda job: DONE, keeps_order=False)
    events = followed(standing, scheduler, store)
    waited = events.index("target: convert done")
    assert events.index("target: build submitted") > waited
    assert events.index("pair submitted") > events.index("draft: build done")
    assert {after for _, after in scheduler.submitted} == {()}
    assert standing.failed == []


@pytest.mark.parametrize("keeps_order", [True, False])
def test_what_needs_a_job_that_died_does_not_run_and_the_rest_does(
    standing: JobStatus, store: Store, keeps_order: bool
) -> None:
    def outcome(job: ClusterJob) -> JobState:
        return KILLED if job.title.endswith("target: build") else DONE

    events = followed(standing, FakeScheduler(outcome, keeps_order=keeps_order), store)
    assert "target: build failed (was killed by SIGKILL)" in events
    assert "pair cancelled (needs pair target: build, which has failed)" in events
    assert "draft: build done" in events
    assert titles(standing.failed) == ["target: build", "pair"]


def test_a_second_call_finds_what_waits_or_runs(standing: JobStatus, store: Store) -> None:
    running = next(name for name, job in standing.jobs.items() if job.title.endswith("target: build"))
    scheduler = FakeScheduler(lambda job: DONE, queue={running: "77"})
    events = followed(standing, scheduler, store)
    assert events[0] == "target: build found"
    assert "target: build submitted" not in events
    assert ("pair pair", ("77", "id-2")) in scheduler.submitted


def test_of_a_job_that_was_forgotten_the_store_tells(
    pair_recipe: Path, wanted: Look, store: Store, tmp_path: Path
) -> None:
    standing = JobStatus(plan_jobs([wanted(pair_recipe)], str(store), shares_files=True))

    def outcome(job: ClusterJob) -> JobState:
        if job.title.endswith("pair"):
            return JobState(Phase.RUNS)
        if job.title.endswith("target: build"):
            only = ("--only", "target", "--output", tmp_path / "y", "--store", store)
            assert trtspec("build", pair_recipe, *only).returncode == 0
        return JobState(Phase.LOST, "nobody knows")

    events = followed(standing, FakeScheduler(outcome), store)
    assert "target: build done (nobody knows)" in events
    assert "draft: build failed (nobody knows)" in events


def test_a_job_that_only_prepares_may_be_forgotten(standing: JobStatus, store: Store) -> None:
    def outcome(job: ClusterJob) -> JobState:
        return JobState(Phase.LOST) if job.product is None else DONE

    followed(standing, FakeScheduler(outcome), store)
    assert standing.failed == []


def test_ctrl_c_leaves_the_jobs_and_they_can_be_cancelled(
    standing: JobStatus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = FakeScheduler(lambda job: JobState(Phase.RUNS, node="n1"))

    def pressed(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trtspec.cluster.jobs.sleep", pressed)
    with pytest.raises(KeyboardInterrupt):
        follow(standing, scheduler, store, Heard())
    assert scheduler.cancelled == []
    ids = [f"id-{number}" for number in range(5)]
    assert cancel(standing, scheduler) == ids
    assert scheduler.cancelled == ids


def test_it_is_asked_less_and_less_often(
    standing: JobStatus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waits = [0.0], list[float]()
    monkeypatch.setattr("trtspec.cluster.jobs.monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    scheduler = FakeScheduler(lambda job: DONE if now[0] > 1000 else JobState(Phase.RUNS))
    monkeypatch.setattr("trtspec.cluster.jobs.sleep", sleep)
    follow(standing, scheduler, store, Heard())
    assert waits[:2] == [1.0, 1.0]
    assert max(waits) == waits[-1] == 10.0


def silent(scheduler: FakeScheduler, now: list[float], until: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the scheduler silent from its second answer on, until so many seconds have gone."""
    answers, states = [0], scheduler.states

    def asked(jobs: Mapping[str, ClusterJob]) -> Mapping[str, JobState]:
        answers[0] += 1
        if answers[0] > 1 and now[0] < until:
            raise UnavailableError("Slurm", "its controller does not answer")
        return states(jobs)

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(scheduler, "states", asked)
    monkeypatch.setattr("trtspec.cluster.jobs.sleep", sleep)
    monkeypatch.setattr("trtspec.cluster.jobs.monotonic", lambda: now[0])


def test_a_controller_may_be_restarted_meanwhile(
    standing: JobStatus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, heard = [0.0], Heard()
    scheduler = FakeScheduler(lambda job: DONE if now[0] > 500 else JobState(Phase.RUNS))
    silent(scheduler, now, 500, monkeypatch)
    follow(standing, scheduler, store, heard)
    assert "Slurm: its controller does not answer" in heard.events
    assert standing.failed == []


def test_one_that_never_answers_again_ends_it(
    standing: JobStatus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    scheduler = FakeScheduler(lambda job: JobState(Phase.RUNS))
    silent(scheduler, now, 1e9, monkeypatch)
    with pytest.raises(UnavailableError, match="does not answer"):
        follow(standing, scheduler, store, Heard())
    assert 600 < now[0] < 700
