"""Looks for errors that would end a build, before a file of weights is read, hashed or downloaded."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from trtspec.backends.recipes import release_of, runner_of
from trtspec.base.progress import Progress, no_progress
from trtspec.base.roles import Role
from trtspec.models.download import cache_of, find_models
from trtspec.models.heads.reading import read_head
from trtspec.models.pair import refuse
from trtspec.models.published import published
from trtspec.models.source import Source
from trtspec.pipeline.build.plan import BuildPlan, PlanRequest, draw_plan, judged, read_request
from trtspec.pipeline.inspection.pair import PairReport, inspect_pair, inspect_planned
from trtspec.pipeline.machine.host import Host, find_disk, find_host
from trtspec.pipeline.plan.obstacles import disk_obstacle
from trtspec.pipeline.plan.resolved import build_folder
from trtspec.pipeline.run.records import has_records, unrecorded
from trtspec.pipeline.run.runner import check_ours, prepare
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import build, convert
from trtspec.pipeline.steps.steps import Stage, up_to
from trtspec.recipe.loader import LoadedRecipe


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
    host = find_host(release_of(loaded.recipe), container=request.container)
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
    models, head, sources = loaded.recipe.models, None, dict[Role, Source]()
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
            sources[role] = runner_of(loaded.recipe).read(folder)
    unseen = {role: f"{error.subject} {error.problem}" for role, error in lacking.items()}
    return inspect_pair(
        loaded, runner_of(loaded.recipe), sources, unseen, head, loaded.recipe.engine.max_seq_len
    )


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
