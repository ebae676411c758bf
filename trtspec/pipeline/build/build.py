"""A build: planned, done step by step, and pushed to a store.

Builders who share a store hold leases on the engines of a build, and so make each engine once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Literal

from trtspec.base.progress import Advance, Progress, no_progress
from trtspec.base.roles import Role
from trtspec.pipeline.build.plan import BuildPlan, PlanRequest, completed
from trtspec.pipeline.build.preflight import look_ahead
from trtspec.pipeline.build.report import recorded
from trtspec.pipeline.build.stored import check_key, push_build
from trtspec.pipeline.run.runner import fetch_weights, run
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps.steps import Stage, up_to
from trtspec.pipeline.store.entry import Entry
from trtspec.pipeline.store.lease import StoreLease, leased
from trtspec.pipeline.store.store import Store


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The result of a build, as far as it was asked for."""

    plan: BuildPlan
    steps: tuple[Step, ...]
    """The steps that were asked for, in order; none where the store has the one engine that was."""
    ran: tuple[str, ...]
    """The names of the steps that had to be run; the others were done before."""
    seconds: float
    """The time that they took."""
    pushed: tuple[Entry, ...] | None = None
    """The new entries of the store; None if nothing was to be pushed."""

    @property
    def output(self) -> Path:
        """The build directory."""
        return self.plan.output


def build(
    recipe: str | Path,
    *,
    output: str | Path | None = None,
    backend: str | None = None,
    container: bool = False,
    only: Role | Literal["target", "draft"] | None = None,
    until: Stage | Literal["fetch", "calibrate", "convert", "build"] = Stage.BUILD,
    store: Store | None = None,
    key: str | None = None,
    report: Sequence[Path] = (),
    progress: Progress = no_progress,
    warn: Callable[[str], None] = warnings.warn,
) -> BuildResult:
    """Converts the models, builds their engines and writes the repository; does nothing twice.

    `output`, `backend` and `container` are as for `make_plan`. With `only` one engine is made alone, up to
    the stage `until`, and no repository. Engines that the `store` has are pulled, and what is built is pushed
    there; it waits for engines that others build for the store meanwhile. With `key` the build must be the
    one that stores know by it. `report` names files of which each gets a report, however the build ends.
    `progress` reports long work, and `warn` what does not harm the build.

    Raises what `make_plan` raises, UnavailableError where this machine cannot build it, before a file of
    weights is read, and whatever a step raises. The next call continues an interrupted build.
    """
    role, stage = Role(only) if only else None, Stage(until)
    request = PlanRequest(output, backend, container=container, only=role)
    pushes = store if stage is Stage.BUILD else None

    def complete(outline: BuildPlan) -> BuildPlan:
        made = completed(outline, store)
        if key:
            check_key(made, role, key)
        return made

    with recorded(Path(recipe), report, warn=warn) as record, ExitStack() as held:
        made, watch = look_ahead(recipe, request, stage, progress, pulls=store is not None), progress
        for note in made.notes:
            warn(note.words)
        if pushes:
            made = complete(made)
            watch = held.enter_context(_leased(pushes, made, progress, warn))
        made = complete(made)
        record(made)
        if role and role in made.found:
            return BuildResult(made, (), (), 0.0)
        if stage is Stage.FETCH:
            undone = made.pending()
            fetch_weights((step for step in made.steps if step.name in undone), progress)
        done = run_steps(made, up_to(made.steps, stage), watch)
        return replace(done, pushed=tuple(push_build(pushes, made, watch, role))) if pushes else done


def run_steps(made: BuildPlan, steps: Sequence[Step], progress: Progress = no_progress) -> BuildResult:
    """Runs those of a plan's steps that are not done; raises what `run` raises."""
    start = monotonic()
    ran = run(steps, made.output, made.digests, progress)
    return BuildResult(made, tuple(steps), tuple(ran), monotonic() - start)


@contextmanager
def _leased(
    store: Store, made: BuildPlan, watch: Progress, warn: Callable[[str], None]
) -> Iterator[Progress]:
    """Holds the leases of what a plan would build here; yields a `Progress` that those who wait see too.

    It waits for what others are building, before any weights are downloaded; the plan is completed anew
    afterwards, to pull that. Leases are taken in the order of their keys, so that no two builders wait for
    each other. `warn` is called at the end if another builder took over. Raises StoreError.
    """
    name, tensorrt = made.resolved.loaded.recipe.name, made.facts.host.versions.get("tensorrt")
    engines = {
        (platform.folder, key): (role, platform)
        for role, platform, key in made.unbuilt(made.pending(), tensorrt)
    }
    with ExitStack() as held:
        leases = dict[Role, StoreLease]()
        for (_, key), (role, platform) in sorted(engines.items()):
            if lease := held.enter_context(leased(store, platform, key, f"{role} of {name}", watch)):
                leases[role] = lease
        yield _told(watch, list(leases.values()))
        for role, lease in leases.items():
            if lease.is_lost:
                warn(f"{role}: the lease was not renewed in time, so another builder has built it too")


def _told(watch: Progress, leases: list[StoreLease]) -> Progress:
    """Returns a `Progress` that those who wait for the leases see too."""

    @contextmanager
    def told(label: str, size: int | None) -> Iterator[Advance]:
        for lease in leases:
            lease.tell(label)
        with watch(label, size) as advance:
            yield advance

    return told
