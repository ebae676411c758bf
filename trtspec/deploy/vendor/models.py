"""The models that a server of others loads: folders here, or the Hub's, which it downloads itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trtspec.backends.containers.container import Container, Mount
from trtspec.backends.servers.launch import ServerLaunch
from trtspec.base.atomic import write_atomically
from trtspec.base.errors import UnavailableError
from trtspec.deploy.build import DeployedBuild
from trtspec.deploy.vendor.build import find_launch
from trtspec.recipe.schema import Recipe


@dataclass(frozen=True, slots=True)
class Models:
    """The models of a launch."""

    launch: ServerLaunch
    hub: Path | None
    """The cache of the Hugging Face Hub; None where all models have folders."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables that a server on this machine needs to load them: where the Hub is, and a token."""
        return {name: value for name, value in os.environ.items() if self.hub and name.startswith("HF_")}

    def prepare(self, build: Path) -> None:
        """Writes what the build lacks of the launch's files; raises `UnavailableError` without a folder."""
        if self.hub:
            self.hub.mkdir(parents=True, exist_ok=True)
        for name, text in self.launch.files.items():
            if not (build / name).exists():
                write_atomically(build / name, text)
        for model in map(Path, self.launch.models):
            if not model.is_dir():
                raise UnavailableError(model, "the folder of a model is not there", "trtspec build RECIPE")

    def mounted(self, made: Container) -> Container:
        """Returns a container that sees them; the Hub's token is that of whoever runs its line. Pure.

        What is in the build it sees already.
        """
        # In the Hub's cache the files of a snapshot are links to what is beside it.
        models = map(Path, self.launch.models)
        found = [path for path in models if not path.is_relative_to(made.folder)]
        folders = {path.parents[1] if path.parent.name == "snapshots" else path: None for path in found}
        mounts = (*made.mounts, *(Mount(folder, read_only=True) for folder in folders))
        if self.hub is None:
            return replace(made, mounts=mounts)
        return replace(
            made,
            mounts=(*mounts, Mount(self.hub)),
            environment={**made.environment, "HF_HUB_CACHE": str(self.hub)},
            secrets=(*made.secrets, "HF_TOKEN"),
        )


def models_of(launch: ServerLaunch, recipe: Recipe) -> Models:
    """Returns the models of a launch: what has no folder here is the Hub's."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Models(launch, Path(HF_HUB_CACHE) if len(launch.models) < len(recipe.models) else None)


def find_models(build: DeployedBuild) -> Models | None:
    """Returns the models of a build that a server of others serves; None for a build with engines."""
    launch = find_launch(build.folder)
    return models_of(launch, build.recipe) if launch else None
