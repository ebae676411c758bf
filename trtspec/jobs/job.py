"""One job of a cluster: a part of a build that a call of trtspec on one of its nodes does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtspec.recipe.schema import Recipe
from trtspec.store.platform import Platform


@dataclass(frozen=True, slots=True)
class Product:
    """What a job leaves in the store, by which it is found there."""

    platform: Platform
    key: str


@dataclass(frozen=True, slots=True)
class Job:
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
    def arguments(self) -> tuple[str, ...]:
        """What follows `trtspec` on the command line where this machine's files are, with absolute paths."""
        return self.call(str(self.file), str(self.output), self.store)

    def call(self, file: str, output: str, store: str) -> tuple[str, ...]:
        """Returns the same where recipe, folder and store are elsewhere."""
        places = ("--output", output, "--store", store)
        return ("build", file, *self.words, *places, "--key", self.key)
