"""Looks for errors that would end a build, before a file of weights is read, hashed or downloaded."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from trtspec.base.errors import TrtspecError
from trtspec.base.progress import Progress
from trtspec.models.download import cache_of
from trtspec.pipeline.build.plan import BuildPlan, PlanRequest, draw_plan, read_request
from trtspec.pipeline.machine.host import Host, find_disk, find_host
from trtspec.pipeline.plan.choices import build_folder
from trtspec.pipeline.plan.obstacles import disk_obstacle, recipe_obstacle
from trtspec.pipeline.run.records import has_records, unrecorded
from trtspec.pipeline.run.runner import check_ours, named, prepare
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import build, check_pair, convert
from trtspec.pipeline.steps.steps import Stage, up_to
from trtspec.recipe import gpus
from trtspec.recipe.loader import LoadedRecipe

_CHECKS = (check_pair.KIND, check_pair.HEAD_KIND)
"""The kinds of steps that read configurations and tokenizers alone."""


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
    folder = build_folder(loaded, request.flags, os.environ)
    host = find_host(loaded.recipe, container=request.container)
    is_whole = request.only is None and stage is Stage.BUILD
    if is_whole and not pulls and not has_records(folder) and (error := _host_obstacle(loaded, host)):
        raise error
    made = draw_plan(loaded, host, request, watch)
    steps, names = up_to(made.steps, stage), unrecorded(made.steps, folder)
    undone = [step for step in steps if step.name in names]
    check_models(undone)
    check_ours(steps, folder)
    if not pulls:
        _check_disks(made, undone, names)
        prepare(undone, watch)
    return made


def check_models(steps: Collection[Step]) -> None:
    """Raises what the steps that check a pair or a head raise; they read no weights."""
    for step in steps:
        if step.kind in _CHECKS:
            with named(step):
                step.action(Path(), lambda *_: None)


def _host_obstacle(loaded: LoadedRecipe, host: Host) -> TrtspecError | None:
    """Returns what keeps this machine from building TensorRT-LLM's engines, before a model is looked at."""
    recipe = loaded.recipe
    is_built_anywhere = not recipe.runner.compiles or recipe.hardware.gpu == gpus.NONE
    return None if is_built_anywhere else recipe_obstacle(host, recipe)


def _check_disks(made: BuildPlan, undone: Collection[Step], names: Collection[str]) -> None:
    """Raises UnavailableError if the steps, and the downloads for the steps of these names, do not fit a
    disk."""
    needs, downloads = Counter[Path](), Counter[str]()
    needs[made.output] = _written(made, undone)
    for role in made.missing(names):
        facts = made.facts.models[role]
        # A draft of the target's layers is in the target's repository, which is downloaded once.
        downloads[facts.name] = max(downloads[facts.name], facts.source.size)
    for name, size in downloads.items():
        cache, present = cache_of(name)
        needs[cache] += max(size - present, 0)
    disks = {folder: find_disk(folder) for folder in needs}
    for disk in disks.values():
        on_it = sum(size for folder, size in needs.items() if disks[folder].device == disk.device)
        if error := disk_obstacle(disk, on_it):
            raise error


def _written(made: BuildPlan, undone: Collection[Step]) -> int:
    """Returns the bytes of the checkpoints and engines; one that is compiled is about its checkpoint."""
    sizes = {step.role: step.size or 0 for step in made.steps if step.kind == convert.KIND}
    compiled = {role for role, engine in made.resolved.engines.items() if engine.runner.compiles}
    return sum(
        sizes.get(step.role, 0)
        for step in undone
        if step.kind == convert.KIND or (step.kind == build.KIND and step.role in compiled)
    )
