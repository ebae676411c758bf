"""One engine build of a CI system: what is built, and the runner that it needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import TrtspecError
from trtspec.recipe import releases
from trtspec.recipe.loader import LoadedRecipe


@dataclass(frozen=True, slots=True)
class Job:
    """The build of one recipe; `gpus` of the kind `gpu` are on its runner, `image` has the release."""

    name: str
    recipe: str
    gpu: str
    gpus: int
    release: str
    image: str

    @property
    def labels(self) -> tuple[str, ...]:
        """What its runner is found by: a runner of eight H200 has the label h200x8.

        It may have h200x1 as well, to take the builds of one.
        """
        return ("self-hosted", "gpu", f"{self.gpu}x{self.gpus}")


def job_of(loaded: LoadedRecipe) -> Job | None:
    """The job of a recipe; None for one of the torch backend, whose engines any machine builds."""
    recipe = loaded.recipe
    if recipe.backend == "torch":
        return None
    release = releases.RELEASES[recipe.engine.release or releases.DEFAULT]
    hardware = recipe.hardware
    return Job(
        recipe.name, loaded.path.as_posix(), hardware.gpu, hardware.count, release.version, release.image
    )


def check_names(loaded: Iterable[LoadedRecipe]) -> None:
    """Two recipes of one name would build into one folder; raises TrtspecError."""
    seen: dict[str, Path] = {}
    for one in loaded:
        other = seen.setdefault(one.recipe.name, one.path)
        if other != one.path:
            raise TrtspecError(one.path, f"has the name of {other}: {one.recipe.name}", "rename one of them")
