"""Describes one engine build of a CI system, and the runner that it needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trtspec.base.errors import TrtspecError
from trtspec.recipe import releases
from trtspec.recipe.loader import LoadedRecipe


@dataclass(frozen=True, slots=True)
class CiJob:
    """The build of one recipe."""

    name: str
    recipe: str
    gpu: str
    """The kind of GPU that its runner has."""
    gpus: int
    """The number of these GPUs."""
    release: str
    image: str
    """The image that contains the release."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that its runner is found by: a runner with eight H200 has the label h200x8.

        That runner may have the label h200x1 as well, to take builds for one GPU too.
        """
        return ("self-hosted", "gpu", f"{self.gpu}x{self.gpus}")


def job_of(loaded: LoadedRecipe) -> CiJob | None:
    """Returns the job of a recipe; None for a recipe that any machine can build."""
    recipe = loaded.recipe
    if not recipe.runner.compiles:
        return None
    release = releases.RELEASES[recipe.engine.release or releases.DEFAULT]
    hardware = recipe.hardware
    return CiJob(
        recipe.name, loaded.path.as_posix(), hardware.gpu, hardware.count, release.version, release.image
    )


def check_names(loaded: Iterable[LoadedRecipe]) -> None:
    """Raises TrtspecError for two recipes of one name, which would build into one folder."""
    seen: dict[str, Path] = {}
    for one in loaded:
        other = seen.setdefault(one.recipe.name, one.path)
        if other != one.path:
            raise TrtspecError(one.path, f"has the name of {other}: {one.recipe.name}", "rename one of them")
