"""Jobs of a cluster: planned, followed and shown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.command_line import trtspec
from tests.unit.cluster.jobs.conftest import Look
from trtspec.base.errors import PairError, UnavailableError
from trtspec.cluster.commands.build_on import Lines, table, words
from trtspec.cluster.jobs import (
    ClusterJob,
    JobState,
    JobStatus,
    PendingBuild,
    Phase,
    cancel,
    follow,
    plan_jobs,
)
from trtspec.pipeline.store.store import Store


class FakeScheduler:
    """Runs a job when those before it are done; `outcome` says what becomes of a job that runs."""

    name = "fake"

    def __init__(
        self,
        outcome: Callable[[ClusterJob], JobState],
        *,
        keeps_order: bool = True,
        queue: Mapping[str, str] | None = None,
    ) -> None:
        self.shares_files, self.keeps_order = True, keeps_order
        self._outcome = outcome
        self.queue = dict(queue or {})
        self.submitted: list[tuple[str, tuple[str, ...]]] = []
        self.cancelled: list[str] = []
        self._over: dict[str, JobState] = {}

    def script(self, job: ClusterJob) -> str:
        return " ".join(job.arguments)

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        return {name: job_id for name, job_id in self.queue.items() if name in names}

    def submit(self, job: ClusterJob, after: Sequence[str]) -> str:
        assert job.name not in self.queue
        assert set(after) <= set(self.queue.values()) | set(self._over)
        self.queue[job.name] = job_id = f"id-{len(self.submitted)}"
        self.submitted.append((job.title, tuple(after)))
        return job_id

    def states(self, jobs: Mapping[str, ClusterJob]) -> Mapping[str, JobState]:
        states = {}
        for job_id, job in jobs.items():
            before = [self._over.get(self.queue.get(name, "")) for name in job.after if name in self.queue]
            if any(state is None or state.phase not in (Phase.DONE, Phase.LOST) for state in before):
                states[job_id] = JobState(Phase.WAITS, "waits for others")
                continue
            states[job_id] = self._outcome(job)
            if states[job_id].phase.is_over:
                self._over[job_id] = states[job_id]
        return states

    def cancel(self, ids: Collection[str]) -> None:
        self.cancelled += ids

    def how_to_cancel(self, ids: Collection[str]) -> str:
        return " ".join(["fake-cancel", *ids])


FP8 = "quantization: {weights: fp8, calibration: {dataset: texts.txt}}"


def jobs(wanted: PendingBuild | Sequence[PendingBuild], *, shares_files: bool = True) -> list[ClusterJob]:
    every = [wanted] if isinstance(wanted, PendingBuild) else wanted
    return plan_jobs(every, "s3://engines", shares_files=shares_files)


def shape(made: list[ClusterJob]) -> list[tuple[str, int, list[str]]]:
    """The titles, the GPUs, and the titles of what each waits for."""
    titles = {job.name: job.title for job in made}
    return [(job.title, job.gpus, [titles[name] for name in job.after]) for job in made]


def build(recipe: Path, folder: Path, store: Store, *words: str) -> None:
    done = trtspec("build", recipe, "--output", folder, "--store", store, *words)
    assert done.returncode == 0, done.stderr


def test_the_torch_backend_needs_no_gpu(pair_recipe: Path, wanted: Look) -> None:
    assert shape(jobs(wanted(pair_recipe))) == [
        ("pair target: build", 0, []),
        ("pair draft: build", 0, []),
        ("pair pair", 0, ["pair target: build", "pair draft: build"]),
    ]


def test_conversion_jobs_hold_no_gpu(h200_recipe: Path, wanted: Look) -> None:
    found = wanted(h200_recipe)
    assert shape(jobs(found)) == [
        ("pair target: convert", 0, []),
        ("pair target: build", 1, ["pair target: convert"]),
        ("pair draft: convert", 0, []),
        ("pair draft: build", 1, ["pair draft: convert"]),
        ("pair pair", 0, ["pair target: build", "pair draft: build"]),
    ]
    assert shape(jobs(found, shares_files=False)) == [
        ("pair target: build", 1, []),
        ("pair draft: build", 1, []),
        ("pair pair", 0, ["pair target: build", "pair draft: build"]),
    ]


def test_calibration_has_every_gpu_of_the_recipe_and_conversion_none(
    h200_recipe: Path, llama_folder: Callable[..., Path], wanted: Look
) -> None:
    llama_folder("target", hidden_size=64, intermediate_size=96)
    text = h200_recipe.read_text().replace(
        "model: ./target", f"model: ./target, parallel: {{tensor: 2}}, {FP8}"
    )
    h200_recipe.write_text(text.replace("gpu: h200", "gpu: h200, count: 4"))
    (h200_recipe.parent / "texts.txt").write_text("one\ntwo\n")
    assert shape(jobs(wanted(h200_recipe)))[:3] == [
        ("pair target: calibrate", 4, []),
        ("pair target: convert", 0, ["pair target: calibrate"]),
        ("pair target: build", 2, ["pair target: convert"]),
    ]


def test_no_job_needs_more_gpus_than_a_host_has(
    h200_recipe: Path, llama_folder: Callable[..., Path], wanted: Look
) -> None:
    """A rank more than there are GPUs is built after another one."""
    llama_folder("target", hidden_size=64, intermediate_size=96)
    text = h200_recipe.read_text().replace(
        "model: ./target", f"model: ./target, parallel: {{tensor: 2, pipeline: 2}}, {FP8}"
    )
    hosts = "kubernetes: {hosts: {gpus_per_host: 2, leader: [lead], worker: [work]}}\n"
    h200_recipe.write_text(text.replace("gpu: h200", "gpu: h200, count: 4") + hosts)
    (h200_recipe.parent / "texts.txt").write_text("one\ntwo\n")
    assert shape(jobs(wanted(h200_recipe)))[:3] == [
        ("pair target: calibrate", 2, []),
        ("pair target: convert", 0, ["pair target: calibrate"]),
        ("pair target: build", 2, ["pair target: convert"]),
    ]


def test_weights_are_downloaded_before_a_gpu_is_held(
    h200_recipe: Path, llama_folder: Callable[..., Path], wanted: Look
) -> None:
    """A model of which only the headers are here, as a plan has one of the Hub."""
    target = llama_folder("target", hidden_size=64, intermediate_size=96)
    (target / ".sha256.json").write_text("{}")
    assert shape(jobs(wanted(h200_recipe)))[0] == ("pair target: convert", 0, [])
    h200_recipe.write_text(h200_recipe.read_text().replace("model: ./target", f"model: ./target, {FP8}"))
    (h200_recipe.parent / "texts.txt").write_text("one\ntwo\n")
    assert shape(jobs(wanted(h200_recipe)))[:4] == [
        ("pair target: fetch", 0, []),
        ("pair target: calibrate", 1, ["pair target: fetch"]),
        ("pair target: convert", 0, ["pair target: calibrate"]),
        ("pair target: build", 1, ["pair target: convert"]),
    ]


def test_a_draft_on_the_cpu_is_built_without_a_gpu(h200_recipe: Path, wanted: Look) -> None:
    h200_recipe.write_text(h200_recipe.read_text().replace("dtype: float16", "device: cpu"))
    assert ("pair draft: build", 0, []) in shape(jobs(wanted(h200_recipe)))


def test_a_job_builds_one_role_with_its_own_folder_log_and_store_key(
    pair_recipe: Path, wanted: Look, tmp_path: Path
) -> None:
    found = wanted(pair_recipe)
    target, _, pair = jobs(found)
    key, build = found.engines[next(iter(found.engines))].key, tmp_path / "build"
    assert target.arguments == (
        *("build", str(pair_recipe), "--only", "target", "--until", "build"),
        *("--output", f"{build}/pair.jobs/target", "--store", "s3://engines", "--key", key),
    )
    assert target.name == f"trtspec-build-{key[:16]}"
    assert target.log == build / "pair/.trtspec/logs/job-target-build.log"
    assert target.folders == (tmp_path,)
    assert pair.arguments[2:4] == ("--output", f"{build}/pair")
    assert pair.arguments[-1] == found.pair.key


def test_another_backend_than_the_recipes_goes_with_the_job(
    h200_recipe: Path, wanted: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTSPEC_BACKEND", "torch")
    (target, *_) = jobs(wanted(h200_recipe))
    assert target.arguments[target.arguments.index("--backend") + 1] == "torch"


def test_an_engine_of_several_recipes_is_made_once(pair_recipe: Path, wanted: Look) -> None:
    other = pair_recipe.with_name("other.yaml")
    other.write_text(
        pair_recipe.read_text().replace("name: pair", "name: other").replace("float32", "float16")
    )
    made = jobs([wanted(pair_recipe), wanted(other, "other")])
    assert shape(made)[-2:] == [
        ("other draft: build", 0, []),
        ("other pair", 0, ["pair target: build", "other draft: build"]),
    ]
    assert len({job.name for job in made}) == len(made) == 5


def test_engines_in_the_store_get_no_job(
    pair_recipe: Path, wanted: Look, store: Store, tmp_path: Path
) -> None:
    build(pair_recipe, tmp_path / "elsewhere", store, "--only", "target")
    assert shape(jobs(wanted(pair_recipe))) == [
        ("pair draft: build", 0, []),
        ("pair pair", 0, ["pair draft: build"]),
    ]
    build(pair_recipe, tmp_path / "elsewhere", store)
    found = wanted(pair_recipe)
    assert found.entry
    assert found.entry.role == "pair"
    assert jobs(found) == []


def test_a_pair_that_was_built_on_this_machine_gets_only_the_push_job(
    pair_recipe: Path, wanted: Look, tmp_path: Path
) -> None:
    assert trtspec("build", pair_recipe, "--output", tmp_path / "build/pair").returncode == 0
    assert shape(jobs(wanted(pair_recipe))) == [("pair pair", 0, [])]


def test_a_job_goes_on_where_the_last_one_died(h200_recipe: Path, wanted: Look, tmp_path: Path) -> None:
    folder = tmp_path / "build/pair.jobs/target"
    words = ("--only", "target", "--until", "convert", "--output", folder)
    assert trtspec("build", h200_recipe, *words).returncode == 0
    assert shape(jobs(wanted(h200_recipe)))[:2] == [
        ("pair target: build", 1, []),
        ("pair draft: convert", 0, []),
    ]


def test_models_that_do_not_fit_together_get_no_job(pair_recipe: Path, wanted: Look) -> None:
    tokenizer = pair_recipe.parent / "draft/tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"a"', '"ab"'))
    with pytest.raises(PairError):
        wanted(pair_recipe)


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
def status(h200_recipe: Path, wanted: Look) -> JobStatus:
    return JobStatus(plan_jobs([wanted(h200_recipe)], "s3://engines", shares_files=True))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.cluster.jobs.sleep", lambda _: None)


def followed(status: JobStatus, scheduler: FakeScheduler, store: Store) -> list[str]:
    heard = Heard()
    follow(status, scheduler, store, heard)
    return heard.events


def titles(jobs: list[ClusterJob]) -> list[str]:
    return [job.title.partition(" ")[2] for job in jobs]


def test_a_scheduler_that_keeps_the_order_has_all_at_once(status: JobStatus, store: Store) -> None:
    scheduler = FakeScheduler(lambda job: DONE)
    events = followed(status, scheduler, store)
    assert events[:5] == [f"{title} submitted" for title in IN_ORDER]
    assert [after for _, after in scheduler.submitted] == [(), ("id-0",), (), ("id-2",), ("id-1", "id-3")]
    assert [event for event in events if event.endswith(" done")] != []
    assert status.is_over
    assert status.failed == []


def test_another_gets_a_job_when_those_before_it_are_done(status: JobStatus, store: Store) -> None:
    scheduler = FakeScheduler(lambda job: DONE, keeps_order=False)
    events = followed(status, scheduler, store)
    waited = events.index("target: convert done")
    assert events.index("target: build submitted") > waited
    assert events.index("pair submitted") > events.index("draft: build done")
    assert {after for _, after in scheduler.submitted} == {()}
    assert status.failed == []


@pytest.mark.parametrize("keeps_order", [True, False])
def test_a_killed_job_cancels_only_the_jobs_that_need_it(
    status: JobStatus, store: Store, keeps_order: bool
) -> None:
    def outcome(job: ClusterJob) -> JobState:
        return KILLED if job.title.endswith("target: build") else DONE

    events = followed(status, FakeScheduler(outcome, keeps_order=keeps_order), store)
    assert "target: build failed (was killed by SIGKILL)" in events
    assert "pair cancelled (needs pair target: build, which has failed)" in events
    assert "draft: build done" in events
    assert titles(status.failed) == ["target: build", "pair"]


def test_a_second_call_finds_what_waits_or_runs(status: JobStatus, store: Store) -> None:
    running = next(name for name, job in status.jobs.items() if job.title.endswith("target: build"))
    scheduler = FakeScheduler(lambda job: DONE, queue={running: "77"})
    events = followed(status, scheduler, store)
    assert events[0] == "target: build found"
    assert "target: build submitted" not in events
    assert ("pair pair", ("77", "id-2")) in scheduler.submitted


def test_the_store_decides_whether_a_lost_job_has_succeeded(
    pair_recipe: Path, wanted: Look, store: Store, tmp_path: Path
) -> None:
    status = JobStatus(plan_jobs([wanted(pair_recipe)], str(store), shares_files=True))

    def outcome(job: ClusterJob) -> JobState:
        if job.title.endswith("pair"):
            return JobState(Phase.RUNS)
        if job.title.endswith("target: build"):
            only = ("--only", "target", "--output", tmp_path / "y", "--store", store)
            assert trtspec("build", pair_recipe, *only).returncode == 0
        return JobState(Phase.LOST, "nobody knows")

    events = followed(status, FakeScheduler(outcome), store)
    assert "target: build done (nobody knows)" in events
    assert "draft: build failed (nobody knows)" in events


def test_a_job_that_only_prepares_may_be_forgotten(status: JobStatus, store: Store) -> None:
    def outcome(job: ClusterJob) -> JobState:
        return JobState(Phase.LOST) if job.product is None else DONE

    followed(status, FakeScheduler(outcome), store)
    assert status.failed == []


def test_ctrl_c_leaves_the_jobs_and_they_can_be_cancelled(
    status: JobStatus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = FakeScheduler(lambda job: JobState(Phase.RUNS, node="n1"))

    def pressed(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trtspec.cluster.jobs.sleep", pressed)
    with pytest.raises(KeyboardInterrupt):
        follow(status, scheduler, store, Heard())
    assert scheduler.cancelled == []
    ids = [f"id-{number}" for number in range(5)]
    assert cancel(status, scheduler) == ids
    assert scheduler.cancelled == ids


def test_the_scheduler_is_asked_less_often_the_longer_jobs_run(
    status: JobStatus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waits = [0.0], list[float]()
    monkeypatch.setattr("trtspec.cluster.jobs.monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    scheduler = FakeScheduler(lambda job: DONE if now[0] > 1000 else JobState(Phase.RUNS))
    monkeypatch.setattr("trtspec.cluster.jobs.sleep", sleep)
    follow(status, scheduler, store, Heard())
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
    status: JobStatus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, heard = [0.0], Heard()
    scheduler = FakeScheduler(lambda job: DONE if now[0] > 500 else JobState(Phase.RUNS))
    silent(scheduler, now, 500, monkeypatch)
    follow(status, scheduler, store, heard)
    assert "Slurm: its controller does not answer" in heard.events
    assert status.failed == []


def test_one_that_never_answers_again_ends_it(
    status: JobStatus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    scheduler = FakeScheduler(lambda job: JobState(Phase.RUNS))
    silent(scheduler, now, 1e9, monkeypatch)
    with pytest.raises(UnavailableError, match="does not answer"):
        follow(status, scheduler, store, Heard())
    assert 600 < now[0] < 700


@pytest.fixture
def shown_status(pair_recipe: Path, wanted: Look) -> JobStatus:
    """Three jobs: one runs and has said something, one waits, one is not submitted."""
    made = JobStatus(plan_jobs([wanted(pair_recipe)], "s3://engines", shares_files=True))
    target, draft, _ = made.jobs
    made.has(target, "7")
    made.has(draft, "8")
    made.learn(
        {
            "7": JobState(Phase.RUNS, node="n1"),
            "8": JobState(Phase.WAITS, "jobs of higher priority come first"),
        }
    )
    log = made.jobs[target].log
    log.parent.mkdir(parents=True)
    log.write_text("convert target ...\nconvert target: 40 % after 20 s\x1b[2J\n\n")
    return made


def test_a_table_has_each_job_with_what_it_does(shown_status: JobStatus) -> None:
    console = Console(width=120, record=True, file=StringIO())
    console.print(table(shown_status, "Slurm: its controller does not answer; asking again"))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert lines[:3] == [
        "pair target: build  7  runs on n1: convert target: 40 % after 20 s\\x1b[2J",
        "pair draft: build   8  waits: jobs of higher priority come first",
        "pair pair              waits: is not submitted yet",
    ]
    assert "does not answer" in " ".join(lines[3:])


def test_lines_say_where_it_stands_when_nothing_changes(
    shown_status: JobStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    shown = Lines(shown_status, lambda: now[0])
    for now[0] in (100.0, 299.0, 301.0, 400.0, 602.0):
        shown.looked()
    shown.unanswered(UnavailableError("Slurm", "its controller does not answer"))
    assert capsys.readouterr().err.splitlines() == [
        "1 runs, 2 waits",
        "1 runs, 2 waits",
        "Slurm: its controller does not answer; asking again",
    ]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (JobState(Phase.DONE, node="n1", restarts=2), "done on n1, restarted 2 times"),
        (JobState(Phase.FAILED, "its node failed", node="n1"), "failed on n1: its node failed"),
        (JobState(Phase.WAITS), "waits"),
    ],
)
def test_a_state_in_words(state: JobState, said: str) -> None:
    assert words(state) == said
