"""Finds the engines of a recipe that a store lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtspec.base.errors import StoreError
from trtspec.base.progress import no_progress
from trtspec.base.roles import Role
from trtspec.cluster.jobs.job import Product
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.build.stored import key_of, platform_for
from trtspec.pipeline.run.digests import FileDigests
from trtspec.pipeline.run.records import FOLDER, pending
from trtspec.pipeline.run.step import name_of
from trtspec.pipeline.steps import build, check_pair
from trtspec.pipeline.steps.stages import Stage, undone_stages
from trtspec.pipeline.store.entry import Entry
from trtspec.pipeline.store.store import Store


@dataclass(frozen=True, slots=True)
class PendingBuild:
    """A recipe's plan, and which parts of it are still to be built."""

    made: BuildPlan
    pair: Product
    entry: Entry | None
    """The pair's entry in the store; None if it is not there. If it is there, nothing is left to build.
    """
    engines: Mapping[Role, Product]
    """The engines that neither the store nor the build directory has."""
    stages: Mapping[Role, tuple[Stage, ...]]
    """The stages left to do for each of these engines in its work folder."""


def work_folder(output: Path, role: Role) -> Path:
    """Returns the folder beside a build directory in which jobs build one of its engines."""
    return output.with_name(f"{output.name}.jobs") / role


def look(store: Store, made: BuildPlan) -> PendingBuild:
    """Returns what is still to be built of a plan that was made for a store.

    Raises StoreError. Raises PairError for models that do not fit together, before a job waits for hours.
    """
    for step in made.own_steps:
        if step.kind == check_pair.KIND:
            step.action(made.output, lambda *_: None)
    pair = _product(made, None)
    if entry := store.find(pair.platform, pair.key):
        return PendingBuild(made, pair, entry, {}, {})
    undone = pending(made.own_steps, made.output, made.digests)
    engines = {
        role: product
        for role in made.resolved.engines
        if name_of(build.KIND, role) in undone
        and not store.find((product := _product(made, role)).platform, product.key)
    }
    stages = {role: _stages(made, role) for role in engines}
    return PendingBuild(made, pair, None, engines, stages)


def _product(made: BuildPlan, only: Role | None) -> Product:
    key = key_of(made, only)
    if key is None:
        raise StoreError(
            made.output, "cannot be looked up in the store: the models' files have not been read"
        )
    return Product(platform_for(made, only), key)


def _stages(made: BuildPlan, role: Role) -> tuple[Stage, ...]:
    folder = work_folder(made.output, role)
    steps = [step for step in made.own_steps if step.role is role]
    digests = FileDigests(folder / FOLDER / "digests.json", no_progress)
    undone = pending(steps, folder, digests)
    return tuple(undone_stages(made.resolved.engines[role], steps, undone))
