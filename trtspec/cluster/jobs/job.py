"""Describes one job of a cluster: one call of trtspec on one node, which does a part of a build."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

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
