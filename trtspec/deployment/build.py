"""Describes a build to be served."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.backends.backend import PYTHON
from trtspec.backends.launch import FILE, ServerLaunch
from trtspec.backends.launch import read as read_launch
from trtspec.backends.table import backend_named, load, runner_of
from trtspec.base.errors import UnavailableError
from trtspec.base.roles import Role
from trtspec.deployment.deployment import (
    StartLimit,
    kind_of,
    limit_for_build,
    limit_for_engines,
    limit_for_models,
)
from trtspec.models.tokenizer import read_tokenizer
from trtspec.pipeline.engine.directory import PlacedEngine, Runtime, built_with, check_loading, read_engine
from trtspec.pipeline.engine.manifest import Manifest, check_unchanged, read_manifest
from trtspec.pipeline.machine.devices import find_gpus, settings_obstacle
from trtspec.pipeline.plan.resolved import build_folder
from trtspec.pipeline.repository.spec import place
from trtspec.pipeline.steps import convert
from trtspec.recipe.loader import LoadedRecipe, parse
from trtspec.recipe.schema import Recipe

if TYPE_CHECKING:
    from trtspec.pipeline.build.plan import BuildPlan


@dataclass(frozen=True)
class DeployedBuild:
    """A build directory and its recipe; each of its files is read once."""

    folder: Path
    loaded: LoadedRecipe

    @property
    def recipe(self) -> Recipe:
        return self.loaded.recipe

    @property
    def is_there(self) -> bool:
        """True if there is something to serve: a model repository, or the launch configuration of another
        engine's server.
        """
        return self.is_for_triton or self.is_of_server

    @property
    def staleness(self) -> str | None:
        """A message that the recipe has changed since the build; None if it has not."""
        if self.is_current:
            return None
        return f"{self.loaded.path} has changed since {self.folder} was built from it"

    @cached_property
    def launch(self) -> ServerLaunch | None:
        """The launch configuration of another engine's server; None for a build with engines.

        Raises `UnavailableError` for an invalid file.
        """
        if not self.is_of_server:
            return None
        try:
            launch = read_launch(self.folder)
            kind_of(launch.backend)
        except (OSError, ValueError, TypeError, KeyError) as error:
            problem = f"has no valid launch configuration: {error}"
            raise UnavailableError(self.folder / FILE, problem, "trtspec build RECIPE") from error
        return launch

    @property
    def is_of_server(self) -> bool:
        """True if another engine's server loads the models, so that there are no engines."""
        return (self.folder / FILE).is_file()

    @property
    def is_for_triton(self) -> bool:
        """True if Triton serves the build: engines, or vLLM where the recipe says so."""
        is_of_vllm = self.is_of_server and self.recipe.serving.layout != "triton"
        return (self.folder / "model_repository").is_dir() and not is_of_vllm

    @property
    def ranks(self) -> int:
        """Returns the number of ranks of the larger engine; 1 where another engine's server has the
        models.
        """
        if self.is_of_server:
            return 1
        return max(read_engine(self.folder / role / "engine").num_processes for role in self._roles)

    @property
    def max_model_len(self) -> int | None:
        """The largest number of tokens of a prompt and its answer; None if another engine's server has the
        models."""
        if self.is_of_server:
            return None
        return read_engine(self.folder / "target/engine").longest

    @property
    def image(self) -> str:
        """The image that can serve it: that of its engines' release, the one with vLLM's backend, or the
        vendor's."""
        launch = None if self.is_for_triton else self.launch
        return launch.image if launch else runner_of(self.recipe).image(self.recipe)

    @property
    def start_limit(self) -> StartLimit:
        """The time that its server may take to be ready."""
        return limit_for_models(self.launch) if self.launch else limit_for_build(self.folder)

    @property
    def doubt(self) -> str | None:
        """The known fault of its server with drafts; None without one."""
        return backend_named(self.launch.backend).doubt(self.recipe.hardware.gpu) if self.launch else None

    @property
    def shares_a_server(self) -> bool:
        """True if NVIDIA's C++ backend loads the engines."""
        has_engine_models = (self.folder / "model_repository/tensorrt_llm").is_dir()
        return has_engine_models and runner_of(self.recipe).triton_backend != PYTHON

    @property
    def backend(self) -> str | None:
        """The backend that it was built for, if from this recipe; None if its manifest does not say."""
        manifest = self._manifest
        return manifest.backend if manifest and manifest.recipe == self.loaded.digest else None

    @property
    def is_current(self) -> bool:
        """True if the build was made from this recipe, as far as its manifest says."""
        manifest = self._manifest
        return manifest is None or manifest.recipe == self.loaded.digest

    def check(self, runtime: Runtime) -> None:
        """Raises at once the errors that loading would raise after minutes: EngineError, ModelError for the
        tokenizer, or UnavailableError for the settings of a GPU."""
        recipe, folder, roles = self.recipe, self.folder.resolve(), self._roles
        gpus = place(runner_of(recipe).ranks(recipe), recipe.hardware.count, recipe.draft_gpus)
        check_unchanged(folder)
        tokenizers = {Role.TARGET: folder / "tokenizer", Role.DRAFT: folder / "draft/tokenizer"}
        own = Role.DRAFT if recipe.speculation.method.translates else Role.TARGET
        sizes = {
            role: read_tokenizer(tokenizers[role if role is own else Role.TARGET]).text_size for role in roles
        }
        manifest = self._manifest
        engines = {
            role: PlacedEngine(folder / f"{role}/engine", gpus.of(role), built_with(manifest, role))
            for role in roles
        }
        check_loading(engines, recipe.speculation.num_draft_tokens or 1, sizes, runtime)
        if backend_named(read_engine(engines[Role.TARGET].folder).backend).needs_gpu:
            visible = find_gpus()
            if problem := settings_obstacle([visible[gpu] for gpu in sorted({*gpus.target, *gpus.draft})]):
                raise problem

    @property
    def _roles(self) -> tuple[Role, ...]:
        """The models that have an engine here; a draft inside the target's engine has none."""
        target = read_engine(self.folder / Role.TARGET / "engine")
        return (Role.TARGET,) if target.has_engine_draft else tuple(self.recipe.models)

    @cached_property
    def _manifest(self) -> Manifest | None:
        return read_manifest(self.folder / "manifest.json")


@dataclass(frozen=True)
class PlannedBuild(DeployedBuild):
    """A build that is not there yet, as its plan makes it."""

    made: BuildPlan

    @classmethod
    def of(cls, made: BuildPlan) -> PlannedBuild:
        return cls(made.output, made.resolved.loaded, made)

    @property
    def launch(self) -> ServerLaunch | None:
        return self.made.resolved.launch

    @property
    def is_of_server(self) -> bool:
        return self.launch is not None

    @property
    def is_for_triton(self) -> bool:
        return self.launch is None or self.recipe.serving.layout == "triton"

    @property
    def ranks(self) -> int:
        engines = self.made.resolved.engines.values() if self.made.resolved.release else ()
        return max((engine.checkpoint.mapping.world_size for engine in engines), default=1)

    @property
    def max_model_len(self) -> int | None:
        return None if self.is_of_server else self.made.resolved.target.options.max_seq_len

    @property
    def start_limit(self) -> StartLimit:
        if self.launch:
            return limit_for_models(self.launch)
        return limit_for_engines(step.size or 0 for step in self.made.own_steps if step.kind == convert.KIND)

    @property
    def shares_a_server(self) -> bool:
        is_bls = self.made.resolved.coordination and self.made.resolved.coordination.layout == "bls"
        return bool(is_bls) and runner_of(self.recipe).triton_backend != PYTHON


def default_image(recipe: Recipe, version: str) -> str:
    """Returns the image's name for a recipe that names none: no registry has this image."""
    release = runner_of(recipe).engine_release(recipe)
    return f"trtspec:{version}-{release.version if release else recipe.backend}"


class NoBuildError(UnavailableError):
    """A folder without a build; the repair is the command that makes one."""

    def __init__(self, folder: Path, repair: str, *, in_container: bool = False) -> None:
        # A relative folder is sought in the working directory.
        where = "" if folder.is_absolute() else f", in {Path.cwd()}"
        super().__init__(folder, f"there is no build here{where}", repair)
        self.in_container = in_container
        """True if the engines would be built in a container."""


def find_build(
    recipe: Path | str, output: Path | str | None = None, *, container: bool = False
) -> DeployedBuild:
    """Returns the build of a recipe in `output`, or in the usual folder.

    The rules are those of the backend that it was built for, which `build --backend` may have named. It is
    for a `container`. Raises RecipeError, and NoBuildError.
    """
    path = Path(recipe)
    parsed = parse(path)
    found = DeployedBuild(
        build_folder(parsed, {"output": str(output) if output else None}, os.environ), parsed
    )
    build = replace(found, loaded=load(path, found.backend))
    if not build.is_there:
        inside = container and runner_of(build.recipe).engine_release(build.recipe) is not None
        where = f" --output {output}" if output else ""
        command = f"trtspec build {recipe}{where}{' --container' * inside}"
        raise NoBuildError(build.folder, command, in_container=inside)
    return build
