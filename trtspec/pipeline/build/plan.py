"""The plan that `build`, `convert`, `plan` and `--dry-run` all follow."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtspec.backends.recipes import load, release_of, runner_of, runners_of
from trtspec.base.digest import digest_of
from trtspec.base.errors import OptionError, UnavailableError
from trtspec.base.findings import Finding
from trtspec.base.progress import Progress, no_progress
from trtspec.base.roles import Role
from trtspec.pipeline.machine.host import Host, find_host
from trtspec.pipeline.plan.facts import PlanFacts, gather
from trtspec.pipeline.plan.resolved import Chooser, Resolved, asked_backend, build_folder, choose_output
from trtspec.pipeline.run.records import FOLDER, FileDigests, has_records, pending, unread_digest
from trtspec.pipeline.run.runner import named
from trtspec.pipeline.run.step import Step, name_of
from trtspec.pipeline.steps import build, check_pair, copy_tokenizer, write_repository
from trtspec.pipeline.steps.pull import MAKERS, StoredEngine, engine_platform
from trtspec.pipeline.steps.steps import all_steps
from trtspec.pipeline.store.entry import Platform
from trtspec.pipeline.store.store import Store
from trtspec.recipe import gpus
from trtspec.recipe.loader import LoadedRecipe


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The request for a build, beside its recipe."""

    output: str | Path | None = None
    """The build directory; None for the recipe's own, as for the next two."""
    backend: str | None = None
    layout: str | None = None
    container: bool = False
    """True if the engines are built in a container."""
    only: Role | None = None
    """The one engine that is made; None for the whole build."""

    @property
    def flags(self) -> Mapping[str, str | None]:
        """The values of flags, by their keys in the recipe; None for a flag that was not given."""
        output = None if self.output is None else str(self.output)
        return {"output": output, "engine.backend": self.backend, "serving.layout": self.layout}


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The plan of a build."""

    request: PlanRequest
    facts: PlanFacts
    resolved: Resolved
    """The consequences of the facts and the recipe."""
    own_steps: list[Step]
    """The steps that make everything here but the manifest."""
    steps: list[Step]
    """The steps that pull the engines that a store has, and make the rest."""
    digests: FileDigests
    """The digests of files, as far as they were asked for."""
    found: Mapping[Role, StoredEngine] = field(default_factory=dict)
    """The engines that a store has."""
    notes: Sequence[Finding] = ()
    """What each model shows by itself; none if an earlier build looked at them."""
    is_complete: bool = False
    """True if the models' files may be read whole for their digests."""

    def __repr__(self) -> str:
        return f"<BuildPlan of {self.resolved.loaded.path}: {len(self.steps)} steps, {self.output}>"

    @property
    def output(self) -> Path:
        return self.resolved.output

    def pending(self) -> set[str]:
        """Returns the names of the steps that are not done."""
        return pending(self.steps, self.output, self.digests)

    def digest(self, step: Step) -> str | None:
        """Returns the digest of a step; None if it is made of files that are not to be read."""
        return self.digests.of_step(step) if self.is_complete else unread_digest(step)

    def unbuilt(self, undone: Collection[str], tensorrt: str | None) -> Iterator[tuple[Role, Platform, str]]:
        """Yields the engines that would have to be built, with the platform and the key of each in a store.

        `undone` names the steps that are not done. `tensorrt` is as for `engine_platform`.
        """
        for role in self.resolved.engines:
            if name_of(build.KIND, role) in undone:
                yield role, engine_platform(self.resolved, role, tensorrt), self.key(role)

    def key(self, role: Role | None) -> str:
        """Returns what stores know an engine by, or else the build, however its engines are made."""
        steps = [step for step in self.own_steps if step.output]
        if role:
            makers = (step for step in steps if step.role is role and step.kind in MAKERS)
            return digest_of([self.digests.of_step(step) for step in makers])
        served = (*copy_tokenizer.outputs(self.resolved), write_repository.OUTPUT)
        own = [self.digests.of_step(step) for step in steps if step.output in served]
        return digest_of(
            [self.resolved.loaded.digest, own, [self.key(role) for role in self.resolved.engines]]
        )

    def check_key(self, role: Role | None, asked: str) -> None:
        """Raises UnavailableError if the plan would make another engine or build than the key names."""
        if self.key(role) != asked:
            problem = f"would make another {role or 'pair'} than the planned one, {asked[:12]}"
            repair = "the recipe, a model or trtspec has changed since the job was planned: plan it again"
            raise UnavailableError(self.resolved.loaded.path, problem, repair)


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
    progress: Progress = no_progress,
) -> BuildPlan:
    """Reads the recipe, this machine and the models, and returns the plan of a build. It is `trtspec.plan`.

    `output` is the build directory, and `backend` and `layout` come before the recipe's own. With `container`
    the engines are built in a container of NVIDIA's image, and not by what is installed here. Engines that
    the `store` has are pulled from it. With `only` the steps are those of one engine.

    No weights are downloaded. Those of a pair that was never built are not read either, but with `to_run` or
    a `store`. Where they are not read, a published model that the Hub does not give is what trtspec's table
    says of it. `progress` reports long work. Raises RecipeError, OptionError for an option that does not go
    with the recipe, PairError for models that do not fit, what `gather` raises, and StoreError.
    """
    request = PlanRequest(output, backend, layout, container, only)
    loaded = read_request(recipe, request)
    host = find_host(release_of(loaded.recipe), container=container)
    folder = build_folder(loaded, request.flags, os.environ)
    reads = to_run or store is not None or has_records(folder)
    made = draw_plan(loaded, host, request, progress, offline=not reads)
    if reads:
        made = completed(made, store)
    return judged(made, made.pending())


def judged(made: BuildPlan, names: Collection[str]) -> BuildPlan:
    """Returns the plan with its `notes`, if the step that judges the models is among these names.

    Raises PairError for models that do not fit, and ModelError or TensorError for one that cannot be used.
    """
    step = next((step for step in made.steps if step.kind in check_pair.KINDS and step.name in names), None)
    if step is None:
        return made
    from trtspec.pipeline.inspection.pair import judge

    with named(step):
        return replace(made, notes=judge(made.resolved, made.facts))


def read_request(recipe: str | Path, request: PlanRequest) -> LoadedRecipe:
    """Returns the recipe, read for the backend that is asked for.

    Raises RecipeError, and OptionError for an engine that the recipe has not.
    """
    loaded = load(Path(recipe), asked_backend(request.flags, os.environ))
    if request.only and request.only not in runner_of(loaded.recipe).engines(loaded.recipe):
        raise OptionError("only", f"{recipe} has no {request.only}")
    return loaded


def draw_plan(
    loaded: LoadedRecipe,
    host: Host,
    request: PlanRequest,
    progress: Progress,
    *,
    offline: bool = False,
    asks: bool = True,
) -> BuildPlan:
    """Returns the plan as far as it is known before a file of weights is read, hashed or downloaded.

    `offline` and `asks` are as for `gather`. Raises RecipeError and OptionError, also for what the recipe
    wants and its models do not allow, and what `gather` raises.
    """
    runner = runner_of(loaded.recipe)
    facts = gather(loaded, host, progress, is_whole=not runner.builds_engines, offline=offline, asks=asks)
    resolved = resolve(loaded, facts, request.flags, os.environ)
    if request.container and resolved.release is None:
        raise OptionError("container", f"the {resolved.backend} backend builds without a container")
    own = runner.steps(resolved, facts, request.only)
    digests = FileDigests(resolved.output / FOLDER / "digests.json", progress, facts.read)
    return BuildPlan(request, facts, resolved, own, all_steps(resolved, facts, own, {}), digests)


def resolve(
    loaded: LoadedRecipe, facts: PlanFacts, flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> Resolved:
    """Returns the recipe with every default filled in, each with where it came from and why; pure.

    A flag overrides the environment, the environment overrides the recipe, and the recipe overrides a
    default. `flags` has values by their key in the recipe, None for a flag that was not given; the recipe was
    read for the `asked_backend` of both. Raises RecipeError for what its models or trtspec cannot do, and
    ModelError for a model that trtspec does not convert.
    """
    choose = Chooser(loaded, flags, environment)
    output = choose_output(choose)
    suits = "what serves in production" if loaded.recipe.hardware.gpu != gpus.NONE else "runs without a GPU"
    choose("engine.backend", loaded.recipe.backend, suits)
    runners = runners_of(loaded.recipe)
    return runner_of(loaded.recipe).resolve(choose, facts, output, runners)


def completed(made: BuildPlan, store: Store | None) -> BuildPlan:
    """Returns the plan with the engines that the store has, so that it tells what is to be done.

    Raises StoreError, and ChangedError for a file that is not the one any more that the plan has read.
    """
    undone = pending(made.own_steps, made.output, made.digests)
    engines = list(made.unbuilt(undone, made.facts.host.versions.get("tensorrt"))) if store else []
    # It may have waited for another builder since it read them.
    made.digests.check()
    found = {
        role: StoredEngine(store, entry)
        for role, platform, key in engines
        if store and (entry := store.find(platform, key))
    }
    steps = all_steps(made.resolved, made.facts, made.own_steps, found)
    return replace(made, steps=steps, found=found, is_complete=True)
