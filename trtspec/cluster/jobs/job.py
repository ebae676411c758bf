"""One job of a cluster: a part of a build that a call of trtspec on one of its nodes does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from trtspec.base.units import GIB
from trtspec.pipeline.store.platform import Platform
from trtspec.recipe.schema import Recipe

SHARED_MEMORY = 2 * GIB
"""The bytes of /dev/shm of a job, which are part of its memory."""

CPUS = 4
"""The processors of a job: most of its time one of them reads and writes, or a GPU works."""

# Python, the Hub and the store take the first; weights are in memory as they are read, as TensorRT takes
# them, and as it writes them.
_BASE, _TIMES = 8 * GIB, 3
# Two hours are for the image, for calibration and for TensorRT, which times its kernels. The rest is for
# eight times the bytes at the rate of a slow network drive: the model, which may have twice as many, is
# downloaded and read, the checkpoint written and read, the engine written and pushed.
_HOURS, _PASSES, _SLOW_B_S = 2, 8, 100e6


@dataclass(frozen=True, slots=True)
class Product:
    """The store's key of what a job produces."""

    platform: Platform
    key: str


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A call of trtspec that waits for `after`, the names of other jobs, to have succeeded.

    `name` has letters, digits and dashes, at most 63, and is the same for the same work, whoever plans it.
    `title` is for people. It builds what has a `key` of the recipe in `file`, in the folder `output`, for the
    store at a URL; `words` say how much of it. `gpus` is how many of the recipe's GPUs it needs on its node,
    0 for none, and `size` the bytes of the checkpoint that it makes or builds from. `image` has the recipe's
    release of TensorRT-LLM, None for the torch backend. `folders` are those of the shared file system that
    it uses, and `log` is the file on it that has, or is to have, its output. `product` is None for a job that
    only prepares what another reads.
    """

    name: str
    title: str
    file: Path
    words: tuple[str, ...]
    output: Path
    store: str
    key: str
    after: tuple[str, ...]
    gpus: int
    size: int
    recipe: Recipe
    image: str | None
    folders: tuple[Path, ...]
    log: Path
    product: Product | None

    @property
    def memory(self) -> int:
        """The bytes of the host's memory that it needs, /dev/shm among them."""
        return _BASE + SHARED_MEMORY + _TIMES * self.size

    @property
    def hours(self) -> int:
        """The hours that it may take, a whole number."""
        return math.ceil(_HOURS + _PASSES * self.size / _SLOW_B_S / 3600)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Returns the arguments of `trtspec` on this machine's files, with absolute paths."""
        return self.call(str(self.file), str(self.output), self.store)

    def call(self, file: str, output: str, store: str) -> tuple[str, ...]:
        """Returns the same where recipe, folder and store are elsewhere."""
        places = ("--output", output, "--store", store)
        return ("build", file, *self.words, *places, "--key", self.key)
