"""The plan that `build`, `convert`, `plan` and `--dry-run` all follow, and what would end a build early.

Facts come first, then every default, then the steps. `look_ahead` finds the errors that would end a build
before a file of weights is read, hashed or downloaded.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from trtspec.backends.table import load, runner_of, runners_of
from trtspec.base.digest import digest_of
from trtspec.base.errors import OptionError, UnavailableError
from trtspec.base.findings import Finding
from trtspec.base.progress import Progress, no_progress
from trtspec.base.roles import Role
from trtspec.models.download import cache_of, find_models
from trtspec.models.heads.reading import read_head
from trtspec.models.pair import refuse
from trtspec.models.published import published
from trtspec.models.source import Source
from trtspec.pipeline.inspection.pair import PairReport, inspect_pair, inspect_planned, judge
from trtspec.pipeline.machine.host import Host, find_disk, find_host
from trtspec.pipeline.plan.facts import PlanFacts, gather
from trtspec.pipeline.plan.obstacles import disk_obstacle
from trtspec.pipeline.plan.resolved import Chooser, Resolved, asked_backend, build_folder, choose_output
from trtspec.pipeline.run.records import FOLDER, FileDigests, has_records, pending, unread_digest, unrecorded
from trtspec.pipeline.run.runner import check_ours, named, prepare
from trtspec.pipeline.run.step import Step, name_of
from trtspec.pipeline.steps import build, check_pair, convert, copy_tokenizer, write_repository
from trtspec.pipeline.steps.pull import MAKERS, StoredEngine
from trtspec.pipeline.steps.steps import Stage, all_steps, up_to
from trtspec.pipeline.store.store import Platform, Store, platform_of
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


@dataclass(frozen=True)
class BuildPlan:
    """The plan of a build."""

    request: PlanRequest
    facts: PlanFacts
    resolved: Resolved
    """The consequences of the facts and the recipe."""
    own_steps: list[Step]
    """The steps that make everything here but the manifest."""
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

    @cached_property
    def steps(self) -> list[Step]:
        """The steps that pull the engines that a store has, and make the rest."""
        return all_steps(self.resolved, self.facts, self.own_steps, self.found)

    def pending(self) -> set[str]:
        """Returns the names of the steps that are not done."""
        return pending(self.steps, self.output, self.digests)

    def digest(self, step: Step) -> str | None:
        """Returns the digest of a step; None if it is made of files that are not to be read."""
        return self.digests.of_step(step) if self.is_complete else unread_digest(step)

    def keys(self) -> dict[Role | None, str]:
        """Returns what stores know each engine by, and under None the build, however its engines are made."""
        made = [step for step in self.own_steps if step.output]
        of, served = (
            self.digests.of_steps(made),
            (*copy_tokenizer.outputs(self.resolved), write_repository.OUTPUT),
        )
        keys: dict[Role | None, str] = {
            role: digest_of([of[step.name] for step in made if step.role is role and step.kind in MAKERS])
            for role in self.resolved.engines
        }
        own = [of[step.name] for step in made if step.output in served]
        return {**keys, None: digest_of([self.resolved.loaded.digest, own, list(keys.values())])}

    def unbuilt(self, undone: Collection[str], tensorrt: str | None) -> list[tuple[Role, Platform, str]]:
        """Returns the engines that would have to be built, with the platform and the key of each in a store.

        `undone` names the steps that are not done. `tensorrt` is as for `platform`.
        """
        keys = self.keys()
        return [
            (role, self.platform(role, tensorrt), keys[role])
            for role in self.resolved.engines
            if name_of(build.KIND, role) in undone
        ]

    def platform(self, role: Role, tensorrt: str | None) -> Platform:
        """Returns the platform of one engine; that of a build is its target's, which loads on fewer machines.

        `tensorrt` is the version that builds, None for that of the release's image.
        """
        recipe = self.resolved.loaded.recipe
        release = self.resolved.engines[role].runner.engine_release(recipe)
        return platform_of(recipe.hardware.gpu, release, tensorrt)

    def check_key(self, role: Role | None, asked: str) -> None:
        """Raises UnavailableError if the plan would make another engine or build than the key names."""
        if self.keys()[role] != asked:
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
    host = find_host(runner_of(loaded.recipe).engine_release(loaded.recipe), container=container)
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
    for step in made.steps:
        if step.kind in check_pair.KINDS and step.name in names:
            with named(step):
                return replace(made, notes=judge(made.resolved, made.facts))
    return made


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
    backend = runner_of(loaded.recipe)
    facts = gather(loaded, host, backend, progress, offline=offline, asks=asks)
    resolved = resolve(loaded, facts, request.flags, os.environ)
    if request.container and resolved.release is None:
        raise OptionError("container", f"the {resolved.backend} backend builds without a container")
    store = resolved.output / FOLDER / "digests.json"
    # A build that has no copy of the weights takes the Hub's word for them.
    of_hub = () if backend.copies else [each.source.folder for each in facts.models.values() if each.revision]
    digests = FileDigests(store, progress, facts.read, of_hub)
    return BuildPlan(request, facts, resolved, backend.steps(resolved, facts, request.only), digests)


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
    tensorrt, found = made.facts.host.versions.get("tensorrt"), dict[Role, StoredEngine]()
    engines = made.unbuilt(undone, tensorrt) if store else []
    # It may have waited for another builder since it read them.
    made.digests.check()
    for role, platform, key in engines:
        if store and (entry := store.find(platform, key)):
            found[role] = StoredEngine(store, entry)
    return replace(made, found=found, is_complete=True)


def look_ahead(
    recipe: str | Path, request: PlanRequest, stage: Stage, watch: Progress, *, pulls: bool
) -> BuildPlan:
    """Returns the outline of a build, or raises if it would fail by what is known without the weights.

    The tools, the container engine and the GPUs come first, then the models' configurations and the access to
    them, then the disks; what steps need beside all that, such as an image, is fetched last. A build that
    `pulls` from a store needs no tools. Steps before `stage`, or of an earlier build, need none either.
    Raises what `draw_plan` raises, UnavailableError, and PairError.
    """
    loaded = read_request(recipe, request)
    folder, backend = build_folder(loaded, request.flags, os.environ), runner_of(loaded.recipe)
    host = find_host(backend.engine_release(loaded.recipe), container=request.container)
    is_first = request.only is None and stage is Stage.BUILD and not pulls and not has_records(folder)
    if is_first and (error := backend.host_obstacle(host, loaded.recipe)):
        # Another machine would refuse a wrong recipe too.
        findings = look_here(loaded, host, request).findings
        refuse(str(recipe), findings, can_translate=backend.translates)
        raise error
    made = draw_plan(loaded, host, request, watch)
    steps, names = up_to(made.steps, stage), unrecorded(made.steps, folder)
    undone = [step for step in steps if step.name in names]
    made = judged(made, names)
    check_ours(steps, folder)
    if not pulls:
        _check_disks(made, undone, names)
        prepare(undone, watch)
    return made


def look_here(loaded: LoadedRecipe, host: Host, request: PlanRequest) -> PairReport:
    """Returns what the models show by which a plan would be refused, as far as this machine has them.

    The Hub is not asked. Of a model that is neither here nor in trtspec's table nothing is known, and so
    nothing of what the plan would choose. Raises what `draw_plan` raises.
    """
    models, backend = loaded.recipe.models, runner_of(loaded.recipe)
    head, sources = None, dict[Role, Source]()
    places = find_models(loaded, loaded.locations, no_progress, asks=False)
    lacking = {role: place for role, place in places.items() if not isinstance(place, Path)}
    if all(published(models[role].model, models[role].revision) for role in lacking):
        made = draw_plan(loaded, host, request, no_progress, offline=True, asks=False)
        return inspect_planned(made.resolved, made.facts)
    for role, folder in places.items():
        if not isinstance(folder, Path):
            continue
        if loaded.recipe.speculation.method.is_head and role is Role.DRAFT:
            head = read_head(folder)
        else:
            sources[role] = backend.read(folder)
    unseen = {role: f"{error.subject} {error.problem}" for role, error in lacking.items()}
    return inspect_pair(loaded, backend, sources, unseen, head, loaded.recipe.engine.max_seq_len)


def _check_disks(made: BuildPlan, undone: Collection[Step], names: Collection[str]) -> None:
    """Raises UnavailableError if the steps, and the downloads for the steps of these names, do not fit a
    disk, or may not be written there."""
    needs, downloads = Counter[Path](), Counter[str]()
    needs[made.output] = _written(made, undone)
    for role in {step.role for step in made.steps if step.name in names and step.fetch and step.role}:
        facts = made.facts.models[role]
        # A draft of the target's layers is in the target's repository, which is downloaded once.
        downloads[facts.name] = max(downloads[facts.name], facts.source.size)
    for name, size in downloads.items():
        cache, present = cache_of(name)
        needs[cache] += max(size - present, 0)
    disks = {folder: find_disk(folder) for folder, size in needs.items() if size or folder == made.output}
    for folder, disk in disks.items() if undone else ():
        on_it = sum(needs[other] for other, its in disks.items() if its.device == disk.device)
        own = "choose another --output" if folder == made.output else "set HF_HOME to another folder"
        if error := disk_obstacle(disk, on_it, own):
            raise error


def _written(made: BuildPlan, undone: Collection[Step]) -> int:
    """Returns the bytes of the checkpoints, and of the engines that have copies of them."""
    sizes = {step.role: step.size or 0 for step in made.steps if step.kind == convert.KIND}
    copies = {role: engine.runner.copies - 1 for role, engine in made.resolved.engines.items()}
    return sum(
        sizes.get(step.role, 0) * (copies[step.role] if step.kind == build.KIND else 1)
        for step in undone
        if step.kind in (convert.KIND, build.KIND) and step.role
    )
