"""The plan that `build`, `convert`, `plan` and `--dry-run` all follow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.base.errors import OptionError
from trtspec.base.progress import Progress, no_progress
from trtspec.base.roles import Role
from trtspec.models.headers_only import is_headers_only
from trtspec.models.hub import cached_folder
from trtspec.pipeline.build.gather import gather
from trtspec.pipeline.build.stored import look
from trtspec.pipeline.machine.host import find_host
from trtspec.pipeline.plan.choices import asked_backend, build_folder
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.obstacles import recipe_obstacle
from trtspec.pipeline.plan.resolved import Resolved, resolve
from trtspec.pipeline.run.digests import FileDigests
from trtspec.pipeline.run.records import FOLDER, has_records, pending
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps.pull import StoredEngine
from trtspec.pipeline.steps.steps import make_steps, weights_read
from trtspec.pipeline.store.store import Store
from trtspec.recipe import gpus
from trtspec.recipe.loader import LoadedRecipe, load
from trtspec.recipe.releases import release_of


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The plan of a build."""

    facts: PlanFacts
    resolved: Resolved
    """The consequences of the facts and the recipe."""
    steps: list[Step]
    """The steps that pull the engines that a store has, and make the rest."""
    own_steps: list[Step]
    """The steps that make everything here."""
    digests: FileDigests
    """The digests of files."""
    found: Mapping[Role, StoredEngine] = field(default_factory=dict)
    """The engines that a store has."""

    @property
    def output(self) -> Path:
        return self.resolved.output

    def pending(self) -> set[str]:
        """Returns the names of the steps that are not done."""
        return pending(self.steps, self.output, self.digests)


def make_plan(
    recipe: str | Path,
    *,
    output: str | Path | None = None,
    backend: str | None = None,
    layout: str | None = None,
    container: bool = False,
    store: Store | None = None,
    only: Role | None = None,
    to_run: bool = False,
    digests: FileDigests | None = None,
    progress: Progress = no_progress,
) -> BuildPlan:
    """Reads the recipe, this machine and the models, and returns the plan of a build. It is `trtspec.plan`.

    `output` is the build directory, and `backend` and `layout` come before the recipe's own. With `container`
    the engines are built in a container of NVIDIA's image, and not by what is installed here. Engines that
    the `store` has are pulled from it. With `only` the steps are those of one engine.

    The weights of a pair that was never built are read only with `to_run` or a `store`, and downloaded only
    with `to_run`, if a step will read them. Where they are not read, a published model that the Hub does not
    give is what trtspec's table says of it. `digests` are those of an earlier plan. `progress` is told of
    long work. Raises RecipeError, OptionError for an option that does not go with the recipe, what `gather`
    raises, and StoreError.
    """
    flags = {
        "output": None if output is None else str(output),
        "engine.backend": backend,
        "serving.layout": layout,
    }
    loaded = load(Path(recipe), asked_backend(flags, os.environ))
    if only and only not in loaded.recipe.engines:
        raise OptionError("only", f"{recipe} has no {only}")
    folder = build_folder(loaded, flags, os.environ)
    digests = digests or FileDigests(folder / FOLDER / "digests.json", progress)
    # The release of a recipe may be one of a server of others.
    compiles = loaded.recipe.runner.compiles
    host = find_host(release_of(loaded.recipe.engine.release if compiles else None), container=container)
    known = digests if to_run or store or has_records(folder) else None
    weights: set[Role] = set()
    while True:
        facts = gather(loaded, host, known, weights, progress, offline=known is None)
        resolved = resolve(loaded, facts, flags, os.environ)
        if container and resolved.release is None:
            raise OptionError("container", f"the {resolved.backend} backend builds without one")
        own = steps = make_steps(resolved, facts, only=only)
        found = dict[Role, StoredEngine]()
        if store:
            found = look(store, own, pending(own, folder, digests), resolved, host.versions.get("tensorrt"))
            steps = make_steps(resolved, facts, found, only)
        made = BuildPlan(facts, resolved, steps, own, digests, found)
        undone = made.pending() if to_run else set[str]()
        needed = weights_read([step for step in steps if step.name in undone])
        missing = {role for role in needed if is_headers_only(facts.models[role].source)}
        if not missing:
            return made
        weights |= missing


def check_host(recipe: Path, backend: str | None, *, container: bool) -> None:
    """Raises the obstacle that would end a build, before hundreds of gigabytes are downloaded for it.

    A build whose models are all here is not checked: the steps that this machine cannot run may be done.
    """
    loaded = load(recipe, asked_backend({"engine.backend": backend}, os.environ))
    is_built_anywhere = not loaded.recipe.runner.compiles
    if is_built_anywhere or loaded.recipe.hardware.gpu == gpus.NONE or _has_models(loaded):
        return
    host = find_host(release_of(loaded.recipe.engine.release), container=container)
    if obstacle := recipe_obstacle(host, loaded.recipe):
        raise obstacle


def _has_models(loaded: LoadedRecipe) -> bool:
    models = [(loaded.model_location(model), model) for model in loaded.recipe.models.values()]
    return all(isinstance(place, Path) or cached_folder(place, model.revision) for place, model in models)
