"""Describes a job of a cluster, its state, and the interface of the scheduler that runs it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from trtspec.base.units import GIB
from trtspec.pipeline.store.entry import Platform
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
    image: str | None
    """An image with the recipe's release of TensorRT-LLM; None for the torch backend."""
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
