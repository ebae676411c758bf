"""Plans the jobs that build on a cluster what a store lacks, and follows them to the end."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from time import monotonic, sleep
from typing import Protocol

from trtspec.base.errors import UnavailableError
from trtspec.base.roles import Role
from trtspec.base.units import GIB
from trtspec.checkpoint.convert import checkpoint_size
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.plan.resolved import EnginePlan
from trtspec.pipeline.run.records import FOLDER, pending
from trtspec.pipeline.steps.steps import Stage, needs_gpu, undone_stages
from trtspec.pipeline.store.store import Entry, Platform, Store
from trtspec.recipe.schema import Recipe

SHARED_MEMORY = 2 * GIB
"""The bytes of /dev/shm of a job. They are part of its memory."""

CPUS = 4
"""The processors of a job. Most of the time one of them reads and writes, or a GPU works."""

# Python, the Hub and the store take the first. Weights are in memory three times: as they are read, as
# TensorRT takes them, and as it writes them.
_BASE, _TIMES = 8 * GIB, 3
# Two hours are for the image, for calibration and for TensorRT, which times its kernels. The rest is for
# eight times the checkpoint's bytes at the rate of a slow network drive. The model, which may have twice the
# bytes, is downloaded and read: four times. The checkpoint is written and read, and the engine is written and
# pushed: four times.
_HOURS, _PASSES, _SLOW_B_S = 2, 8, 100e6

_SHORTEST_S, _LONGEST_S = 1.0, 10.0
_ABSENCE_S = 600.0  # a controller restarts within this time

_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Product:
    """The store's key of what a job produces."""

    platform: Platform
    key: str


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A job of a cluster: one call of trtspec that builds a part of a recipe."""

    name: str
    """The name: letters, digits and dashes, at most 63. The same work always has the same name."""
    title: str
    """The name for people."""
    file: Path
    """The file of the recipe."""
    words: tuple[str, ...]
    """The arguments of the call that say which part of the recipe is built, and with which backend."""
    output: Path
    """The folder that it builds in."""
    store: str
    """The URL of the store that gets the build."""
    key: str
    """The store's key of what it builds or prepares."""
    after: tuple[str, ...]
    """The names of the jobs that must have succeeded before it starts."""
    gpus: int
    """The number of the recipe's GPUs that it needs on its node; 0 for none."""
    size: int
    """The bytes of the checkpoint that it makes or builds from."""
    recipe: Recipe
    folders: tuple[Path, ...]
    """The folders of the shared file system that it uses."""
    log: Path
    """The file on the shared file system for its output."""
    product: Product | None
    """The product in the store; None for a job that only prepares files for another job."""

    @property
    def memory(self) -> int:
        """The bytes of host memory that it needs, including /dev/shm."""
        return _BASE + SHARED_MEMORY + _TIMES * self.size

    @property
    def hours(self) -> int:
        """The time limit in whole hours."""
        return math.ceil(_HOURS + _PASSES * self.size / _SLOW_B_S / 3600)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Returns the arguments of `trtspec` on this machine's files, with absolute paths."""
        return self.call(str(self.file), str(self.output), self.store)

    def call(self, file: str, output: str, store: str) -> tuple[str, ...]:
        """Returns these arguments for another path of the recipe, folder and store."""
        places = ("--output", output, "--store", store)
        return ("build", file, *self.words, *places, "--key", self.key)


class Phase(str, Enum):
    """The phase of a job.

    `lost` means that the scheduler no longer knows the job or how it ended.
    """

    WAITS = "waits"
    RUNS = "runs"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    def __str__(self) -> str:
        return self.value

    @property
    def is_over(self) -> bool:
        return self not in (Phase.WAITS, Phase.RUNS)


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job as its scheduler reports it."""

    phase: Phase
    reason: str | None = None
    """The reason why it waits, or how it ended."""
    repair: str | None = None
    """The repair."""
    node: str | None = None
    """The node where it runs or ran."""
    restarts: int = 0
    """How often the scheduler has requeued it."""


class JobScheduler(Protocol):
    """Runs each job once the jobs that it waits for have succeeded.

    The scheduler gives the ids of jobs. Every method raises UnavailableError if the scheduler does not
    answer, and JobError if it refuses.
    """

    @property
    def name(self) -> str:
        """The scheduler's name for people."""
        ...

    @property
    def shares_files(self) -> bool:
        """True if a job on any node finds the files of the others; else each job does all steps."""
        ...

    @property
    def keeps_order(self) -> bool:
        """True if the scheduler holds a job back until others have succeeded; else a job is submitted only
        then."""
        ...

    def script(self, job: ClusterJob) -> str:
        """Returns what is submitted for a job, for people to read, without its dependencies."""
        ...

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        """Returns the ids of this user's waiting or running jobs, by name."""
        ...

    def submit(self, job: ClusterJob, after: Sequence[str]) -> str:
        """Submits a job that starts when the jobs with these ids have succeeded; returns its id."""
        ...

    def states(self, jobs: Mapping[str, ClusterJob]) -> Mapping[str, JobState]:
        """Returns the states of jobs, by id; appends their new output to `log` if the scheduler does not."""
        ...

    def cancel(self, ids: Collection[str]) -> None:
        """Cancels these jobs, waiting or running; a job that has ended already is no failure."""
        ...

    def how_to_cancel(self, ids: Collection[str]) -> str:
        """Returns the command line that cancels these jobs."""
        ...


@dataclass(frozen=True, slots=True)
class PendingBuild:
    """A recipe's plan, and which parts of it are still to be built."""

    made: BuildPlan
    pair: Product
    entry: Entry | None
    """The pair's entry in the store; None if it is not there. If it is there, nothing is left to build.
    """
    engines: Mapping[Role, Product]
    """The engines that neither the store nor the build directory has."""
    stages: Mapping[Role, tuple[Stage, ...]]
    """The stages left to do for each of these engines in its work folder."""


def work_folder(output: Path, role: Role) -> Path:
    """Returns the folder beside a build directory in which jobs build one of its engines."""
    return output.with_name(f"{output.name}.jobs") / role


def look(store: Store, made: BuildPlan) -> PendingBuild:
    """Returns what is still to be built of a plan that was made for a store; raises StoreError."""
    pair = Product(made.platform(Role.TARGET, None), made.keys()[None])
    if entry := store.find(pair.platform, pair.key):
        return PendingBuild(made, pair, entry, {}, {})
    undone = pending(made.own_steps, made.output, made.digests)
    engines = {
        role: Product(platform, key)
        for role, platform, key in made.unbuilt(undone, None)
        if not store.find(platform, key)
    }
    stages = {role: _stages(made, role) for role in engines}
    return PendingBuild(made, pair, None, engines, stages)


def _stages(made: BuildPlan, role: Role) -> tuple[Stage, ...]:
    folder = work_folder(made.output, role)
    steps = [step for step in made.own_steps if step.role is role]
    made.digests.learn(folder / FOLDER / "digests.json")
    undone = pending(steps, folder, made.digests)
    return tuple(undone_stages(made.resolved.engines[role], steps, undone))


def plan_jobs(wanted: Sequence[PendingBuild], store: str, *, shares_files: bool) -> list[ClusterJob]:
    """Returns the jobs, each after those that it waits for; none for a pair that the store has.

    `store` is the URL that every node can use. An engine that several recipes share is built once. With
    `shares_files`, stages that need no GPU run in jobs without one; else one job does all stages of an
    engine.
    """
    jobs, makers = list[ClusterJob](), dict[str, str]()
    for each in wanted:
        if each.entry is None:
            planner = _Planner(each, store)
            for role, product in each.engines.items():
                if product.key not in makers:
                    jobs += planner.engine_jobs(role, product, shares_files=shares_files)
                    makers[product.key] = jobs[-1].name
            jobs.append(planner.pair_job(tuple(makers[product.key] for product in each.engines.values())))
    return jobs


class _Planner:
    """Makes the jobs of one recipe."""

    def __init__(self, wanted: PendingBuild, store: str) -> None:
        self._wanted, self._resolved, self._store = wanted, wanted.made.resolved, store
        self._loaded, self._output = self._resolved.loaded, self._resolved.output.absolute()

    def engine_jobs(self, role: Role, product: Product, *, shares_files: bool) -> Iterator[ClusterJob]:
        """Yields the jobs of one engine; each continues where the one before it ended."""
        engine, stages = self._resolved.engines[role], self._wanted.stages[role]
        recipe, before = self._loaded.recipe, tuple[str, ...]()
        # If engines span several hosts, a job can have the GPUs of one.
        most = recipe.kubernetes.hosts.gpus_per_host if recipe.kubernetes.hosts else recipe.hardware.count
        for stage, gpus in _groups(engine, stages, most, apart=shares_files):
            job = self._job(
                product,
                role,
                stage,
                ("--only", role.value, "--until", stage.value),
                work_folder(self._output, role),
                gpus=gpus,
                size=checkpoint_size(engine.model.source, engine.checkpoint, engine.engine_draft),
                after=before,
            )
            before = (job.name,)
            yield job

    def pair_job(self, after: tuple[str, ...]) -> ClusterJob:
        """Returns the job that assembles the pair from what other jobs have made, and pushes it."""
        return self._job(self._wanted.pair, "pair", None, (), self._output, gpus=0, size=0, after=after)

    def _job(
        self,
        product: Product,
        what: str,
        stage: Stage | None,
        words: tuple[str, ...],
        folder: Path,
        *,
        gpus: int,
        size: int,
        after: tuple[str, ...],
    ) -> ClusterJob:
        recipe = self._loaded.recipe
        part = f"{what}: {stage}" if stage else what
        backend = ("--backend", self._loaded.asked) if self._loaded.asked else ()
        return ClusterJob(
            name=f"trtspec-{stage or what}-{product.key[:_DIGITS]}",
            title=f"{recipe.name} {part}",
            file=self._loaded.path.absolute(),
            words=(*words, *backend),
            output=folder,
            store=self._store,
            key=product.key,
            after=after,
            gpus=gpus,
            size=size,
            recipe=recipe,
            folders=self._folders(),
            log=self._output / FOLDER / "logs" / f"job-{part.replace(': ', '-')}.log",
            product=product if stage in (None, Stage.BUILD) else None,
        )

    def _folders(self) -> tuple[Path, ...]:
        """Returns the folders of recipe, builds, models, texts and store; none lies inside another."""
        models = self._wanted.made.facts.models.values()
        texts = [model.dataset.file.parent for model in models if model.dataset]
        sources = [model.source.folder for model in models]
        store = [Path(self._store)] if "://" not in self._store else []
        used = {self._loaded.path.absolute().parent, self._output.parent, *sources, *texts, *store}
        absolute = sorted({path.absolute() for path in used})
        return tuple(path for path in absolute if not any(other in path.parents for other in absolute))


def _groups(
    engine: EnginePlan, stages: Sequence[Stage], gpus: int, *, apart: bool
) -> Iterator[tuple[Stage, int]]:
    """Yields the last stage, and the GPUs, of each run of stages that need a GPU or that need none.

    Without `apart`, all stages are one run.
    """
    needs = [_gpus(stage, engine, gpus) for stage in stages]
    if not apart:
        yield stages[-1], max(needs)
        return
    for index, stage in enumerate(stages):
        if index + 1 == len(stages) or (needs[index] > 0) != (needs[index + 1] > 0):
            yield stage, needs[index]


def _gpus(stage: Stage, engine: EnginePlan, count: int) -> int:
    """Returns how many of a node's GPUs a stage takes.

    Calibration spreads the model over all of them. `trtllm-build` builds as many ranks at once as it sees
    GPUs, and then the others.
    """
    if not needs_gpu(stage, engine):
        return 0
    return min(engine.checkpoint.mapping.world_size, count) if stage is Stage.BUILD else count


_NOT_SUBMITTED = JobState(Phase.WAITS, "is not submitted yet")


class JobStatus:
    """The jobs in order, with the known ids and states by name."""

    def __init__(self, jobs: Sequence[ClusterJob]) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.ids: dict[str, str] = {}
        self._states: dict[str, JobState] = {}

    def state(self, name: str) -> JobState:
        return self._states.get(name, _NOT_SUBMITTED)

    def has(self, name: str, job_id: str) -> None:
        """Stores the id of a job that waits or runs at the scheduler."""
        self.ids[name] = job_id
        self._states[name] = JobState(Phase.WAITS)

    def learn(self, states: Mapping[str, JobState]) -> list[ClusterJob]:
        """Stores states, by the jobs' ids, and returns the jobs that have changed.

        A job that needs an unsuccessful one counts as cancelled, whatever its scheduler says.
        """
        changed = []
        for name, job in self.jobs.items():
            state = states.get(self.ids.get(name, ""), self.state(name))
            ended = (other for other in job.after if self.state(other).phase.is_over)
            broken = next((other for other in ended if self.state(other).phase is not Phase.DONE), None)
            if broken and not self.state(name).phase.is_over:
                was = self.state(broken).phase is Phase.CANCELLED
                reason = f"needs {self.jobs[broken].title}, which {'was cancelled' if was else 'has failed'}"
                state = JobState(Phase.CANCELLED, reason)
            if state != self.state(name):
                self._states[name] = state
                changed.append(job)
        return changed

    def ready(self, *, keeps_order: bool) -> list[ClusterJob]:
        """Returns the jobs to submit now: all of them, in order, if the scheduler keeps the order."""
        return [
            job
            for name, job in self.jobs.items()
            if name not in self.ids
            and not self.state(name).phase.is_over
            and (keeps_order or all(self.state(other).phase is Phase.DONE for other in job.after))
        ]

    def ids_before(self, job: ClusterJob) -> list[str]:
        """Returns the ids of the jobs that a job still waits for."""
        return [self.ids[name] for name in job.after if not self.state(name).phase.is_over]

    @property
    def running(self) -> dict[str, ClusterJob]:
        """The jobs that wait or run at the scheduler, by their ids."""
        return {id_: self.jobs[name] for name, id_ in self.ids.items() if not self.state(name).phase.is_over}

    @property
    def is_over(self) -> bool:
        return all(self.state(name).phase.is_over for name in self.jobs)

    @property
    def failed(self) -> list[ClusterJob]:
        """The jobs that have not succeeded."""
        return [job for name, job in self.jobs.items() if self.state(name).phase is not Phase.DONE]


class JobListener(Protocol):
    """Is notified of the progress of jobs."""

    def submitted(self, job: ClusterJob, job_id: str) -> None: ...

    def found(self, job: ClusterJob, job_id: str) -> None:
        """Called for a waiting or running job that an earlier call submitted."""
        ...

    def changed(self, job: ClusterJob, state: JobState) -> None: ...

    def looked(self) -> None:
        """Called after each answer of the scheduler."""
        ...

    def unanswered(self, error: UnavailableError) -> None:
        """Called when the scheduler could not be asked, and will be asked again."""
        ...


def follow(status: JobStatus, scheduler: JobScheduler, store: Store, listener: JobListener) -> None:
    """Submits the jobs that are not there yet and returns when every job has ended, successfully or not.

    The scheduler is asked once a second at first and every ten seconds later. Ctrl-C leaves the jobs as they
    are. Once the scheduler has answered, it may be silent for ten minutes. Raises what the scheduler raises,
    and StoreError.
    """
    begin = answered = monotonic()
    for name, job_id in scheduler.find(status.jobs).items():
        status.has(name, job_id)
        listener.found(status.jobs[name], job_id)
    while True:
        running = dict[str, ClusterJob]()
        try:
            for job in status.ready(keeps_order=scheduler.keeps_order):
                status.has(job.name, scheduler.submit(job, status.ids_before(job)))
                listener.submitted(job, status.ids[job.name])
            running = status.running
            said = scheduler.states(running)
            answered = monotonic()
        except UnavailableError as error:
            if monotonic() - answered > _ABSENCE_S:
                raise
            listener.unanswered(error)
            said = {}
        states = {job_id: _settled(running[job_id], state, store) for job_id, state in said.items()}
        for job in status.learn(states):
            listener.changed(job, status.state(job.name))
        listener.looked()
        if status.is_over:
            return
        sleep(min(max((monotonic() - begin) / 20, _SHORTEST_S), _LONGEST_S))


def _settled(job: ClusterJob, state: JobState, store: Store) -> JobState:
    """Returns the state of a job; for one that the scheduler has forgotten, the store decides.

    A job that leaves nothing in the store may have succeeded or failed: the job that needs it repeats what is
    missing.
    """
    if state.phase is not Phase.LOST:
        return state
    if job.product is None or store.find(job.product.platform, job.product.key):
        return replace(state, phase=Phase.DONE)
    return replace(state, phase=Phase.FAILED)


def cancel(status: JobStatus, scheduler: JobScheduler) -> Sequence[str]:
    """Cancels every job that waits or runs, even one whose id never arrived here; returns the ids."""
    ids = list(dict.fromkeys((*status.running, *scheduler.find(status.jobs).values())))
    if ids:
        scheduler.cancel(ids)
    return ids
