"""Leases on the engines of a build, so that builders who share a store make each engine once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from trtspec.base.progress import Advance, Progress
from trtspec.base.roles import Role
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.build.stored import engine_platform
from trtspec.pipeline.run.step import name_of
from trtspec.pipeline.steps import build
from trtspec.pipeline.steps.pull import engine_key
from trtspec.pipeline.store.lease import StoreLease, leased
from trtspec.pipeline.store.platform import Platform
from trtspec.pipeline.store.store import Store


class Planner(Protocol):
    """Makes the plan, or completes an `earlier` one; `to_run` as in `make_plan`."""

    def __call__(self, *, to_run: bool, earlier: BuildPlan | None = None) -> BuildPlan: ...


@contextmanager
def leased_plan(
    store: Store | None, planned: Planner, watch: Progress, warn: Callable[[str], None]
) -> Iterator[tuple[BuildPlan, Progress]]:
    """Yields the plan of a build, and the `Progress` for its steps; holds leases until the end of the block.

    It waits for what others are building, before it downloads any weights, and then pulls that. Without a
    store it does not wait. Leases are taken in the order of their keys, so that no two builders wait for each
    other. `warn` is called at the end if another builder took over. Raises what `planned` raises, and
    StoreError.
    """
    if store is None:
        yield planned(to_run=True), watch
        return
    first = planned(to_run=False)
    name = first.resolved.loaded.recipe.name
    with ExitStack() as held:
        leases = dict[Role, StoreLease]()
        for role, platform, key in _to_build(first):
            if lease := held.enter_context(leased(store, platform, key, f"{role} of {name}", watch)):
                leases[role] = lease
        yield planned(to_run=True, earlier=first), _told(watch, list(leases.values()))
        for role, lease in leases.items():
            if lease.is_lost:
                warn(f"{role}: the lease was not renewed in time, so another builder has built it too")


def _to_build(made: BuildPlan) -> list[tuple[Role, Platform, str]]:
    """Returns the engines that would be built here, by the order of their keys, each once."""
    undone, tensorrt = made.pending(), made.facts.host.versions.get("tensorrt")
    steps = {step.name for step in made.steps}
    found = dict[tuple[str, str], tuple[Role, Platform, str]]()
    for role in made.resolved.engines:
        step, key = name_of(build.KIND, role), engine_key(made.own_steps, role)
        if step in undone and step in steps and key:
            platform = engine_platform(made.resolved, role, tensorrt)
            found.setdefault((platform.folder, key), (role, platform, key))
    return [found[place] for place in sorted(found)]


def _told(watch: Progress, leases: list[StoreLease]) -> Progress:
    """Returns a `Progress` that those who wait for the leases see too."""

    @contextmanager
    def told(label: str, size: int | None) -> Iterator[Advance]:
        for lease in leases:
            lease.tell(label)
        with watch(label, size) as advance:
            yield advance

    return told
