"""A build: planned, done step by step, and pushed to a store.

Builders who share a store hold leases on the engines of a build, and so make each engine once.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic
from typing import Literal

from trtspec.base.errors import StoreError
from trtspec.base.progress import Advance, Progress, no_progress
from trtspec.base.roles import Role
from trtspec.pipeline.build.plan import BuildPlan, PlanRequest, completed, look_ahead
from trtspec.pipeline.build.report import recorded
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.runner import fetch_weights, only_build, run
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import build as build_step
from trtspec.pipeline.steps import copy_tokenizer, write_repository
from trtspec.pipeline.steps.steps import MANIFEST, Stage, up_to
from trtspec.pipeline.store import transfer
from trtspec.pipeline.store.lease import StoreLease, leased
from trtspec.pipeline.store.store import Content, Entry, Platform, Store


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

    def __repr__(self) -> str:
        return f"<BuildResult {self.output}: {len(self.ran)} of {len(self.steps)} steps run>"

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
            made.check_key(role, key)
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
    tensorrt = made.facts.host.versions.get("tensorrt")
    engines = {
        (platform.folder, key): (role, platform)
        for role, platform, key in made.unbuilt(made.pending(), tensorrt)
    }
    with ExitStack() as held:
        leases = dict[Role, StoreLease]()
        for (_, key), (role, platform) in sorted(engines.items()):
            if lease := held.enter_context(
                leased(store, platform, key, f"{role} of {made.resolved.loaded.recipe.name}", watch)
            ):
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


def push_build(store: Store, made: BuildPlan, watch: Progress, only: Role | None = None) -> list[Entry]:
    """Pushes each engine, and the build as it is served, unless the store has it; returns the new entries.

    With `only` it pushes this engine alone. The build directory is held meanwhile, for another build would be
    stored by the keys of this one. Raises UnavailableError if another build runs there, and StoreError, also
    if another build ran there.
    """
    with only_build(made.output):
        if undone := made.pending():
            problem = f"has changed since it was built: step {min(undone)} must run"
            raise StoreError(made.output, problem, "run the same command again, or choose another --output")
        return _push_held(store, made, watch, only)


def _push_held(store: Store, made: BuildPlan, watch: Progress, only: Role | None) -> list[Entry]:
    """Pushes a build directory that is locked."""
    resolved, folder, keys = made.resolved, made.output, made.keys()
    roles = (only,) if only else tuple(resolved.engines)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    platforms = {role: made.platform(role, manifest["tools"].get("tensorrt")) for role in roles}
    things: list[tuple[Content, Platform, str, Path, tuple[str, ...]]] = [
        (role.value, platforms[role], keys[role], folder / build_step.engine(role), (".",)) for role in roles
    ]
    if only is None:
        things.append(("pair", platforms[Role.TARGET], keys[None], folder, _served(resolved)))
    pushed = []
    for content, platform, key, path, paths in things:
        if store.find(platform, key):
            continue
        with watch(f"read {content}", None) as advance:
            files, folders = transfer.describe(path, paths, advance)
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        entry = Entry(content, manifest["name"], platform, key, created, files, folders, manifest)
        with watch(f"push {content} to {store}", entry.size) as advance:
            transfer.push(store, entry, path, advance)
        pushed.append(entry)
    return pushed


def _served(resolved: Resolved) -> tuple[str, ...]:
    """Returns the paths in a build directory that are needed to serve it."""
    tokenizers, engines = copy_tokenizer.outputs(resolved), map(build_step.engine, resolved.engines)
    return (*tokenizers, *engines, write_repository.OUTPUT, MANIFEST)
