"""Jobs of builds as a plan makes them, of recipes whose models are not here, and how they are followed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.fakes.kubernetes.emulator import Emulator
from tests.fakes.kubernetes.scripts import Script
from trtspec.backends.table import load
from trtspec.base.errors import UnavailableError
from trtspec.cluster.jobs import ClusterJob, JobState, JobStatus, Product, follow
from trtspec.cluster.kubernetes.jobs import KubernetesJobs
from trtspec.pipeline.store.store import Platform, Store

KEY = "0123456789abcdef" * 4


def job_of(
    recipe: Path,
    stage: str = "build",
    *,
    gpus: int = 0,
    after: tuple[str, ...] = (),
    key: str = KEY,
    size: int = 16 << 30,
) -> ClusterJob:
    """The job of one stage of the target of a recipe, or of the `pair`."""
    loaded = load(recipe)
    words = () if stage == "pair" else ("--only", "target", "--until", stage)
    return ClusterJob(
        name=f"trtspec-{stage}-{key[:16]}",
        title=f"{loaded.recipe.name} target: {stage}",
        file=recipe,
        words=words,
        output=recipe.parent / "build",
        store="s3://engines",
        key=key,
        after=after,
        gpus=gpus,
        size=size,
        recipe=loaded.recipe,
        folders=(),
        log=recipe.parent / f"logs/{stage}.log",
        product=None if stage == "convert" else Product(Platform("torch"), key),
    )


class Heard:
    """What a listener of `follow` hears: events, with the job's stage."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []
        self.on_look: Callable[[], None] = lambda: None

    def submitted(self, job: ClusterJob, job_id: str) -> None:
        self.events.append(("submitted", stage(job)))

    def found(self, job: ClusterJob, job_id: str) -> None:
        self.events.append(("found", stage(job)))

    def changed(self, job: ClusterJob, state: JobState) -> None:
        self.events.append((state.phase.value, stage(job), state.reason or ""))

    def looked(self) -> None:
        self.on_look()

    def unanswered(self, error: UnavailableError) -> None:
        self.events.append(("unanswered", error.problem))

    @property
    def said(self) -> str:
        return "\n".join(": ".join(event) for event in self.events)


def stage(job: ClusterJob) -> str:
    return job.title.rpartition(" ")[2]


def run(scheduler: KubernetesJobs, *jobs: ClusterJob, heard: Heard | None = None) -> tuple[JobStatus, Heard]:
    """Follows jobs to their end, beside a store that has nothing."""
    standing, heard = JobStatus(jobs), heard or Heard()
    follow(standing, scheduler, Store("memory://jobs"), heard)
    return standing, heard


def scripted(emulator: Emulator, *scripts: Script) -> None:
    """Pods live by these, one after the other; the last one stands for all further ones."""
    left = list(scripts)
    emulator.script = lambda template: left.pop(0) if len(left) > 1 else left[0]


def pods(emulator: Emulator) -> list[str]:
    return [pod.name for pod in emulator.controllers.pods]


def while_waiting(emulator: Emulator, then: Callable[[], None]) -> Heard:
    """Changes the cluster after the third look."""
    heard, looks = Heard(), list[int]()

    def look() -> None:
        looks.append(0)
        if len(looks) == 3:
            then()

    heard.on_look = look
    return heard
