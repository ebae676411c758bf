"""Pushes what a store lacks of a build, by the keys that it is found by."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

from trtspec.base.digest import digest_of
from trtspec.base.errors import StoreError, UnavailableError
from trtspec.base.progress import Progress
from trtspec.base.roles import Role
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.build_lock import only_build
from trtspec.pipeline.steps import build, copy_tokenizer, write_repository
from trtspec.pipeline.steps.pull import engine_platform
from trtspec.pipeline.steps.steps import MANIFEST
from trtspec.pipeline.store import transfer
from trtspec.pipeline.store.entry import Content, Entry, Platform
from trtspec.pipeline.store.store import Store


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
    resolved, folder = made.resolved, made.output
    roles = (only,) if only else tuple(resolved.engines)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    platforms = {role: engine_platform(resolved, role, manifest["tools"].get("tensorrt")) for role in roles}
    things: list[tuple[Content, Platform, str, Path, tuple[str, ...]]] = [
        (role.value, platforms[role], made.engine_key(role), folder / build.engine(role), (".",))
        for role in roles
    ]
    if only is None:
        things.append(("pair", platforms[Role.TARGET], pair_key(made), folder, _served(resolved)))
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
    tokenizers, engines = copy_tokenizer.outputs(resolved), map(build.engine, resolved.engines)
    return (*tokenizers, *engines, write_repository.OUTPUT, MANIFEST)


def key_of(made: BuildPlan, only: Role | None) -> str:
    """Returns the key of one engine or else of the pair."""
    return made.engine_key(only) if only else pair_key(made)


def pair_key(made: BuildPlan) -> str:
    """Returns the key of a build, which is the same whether the engines were built or pulled."""
    engines = [made.engine_key(role) for role in made.resolved.engines]
    outputs = (*copy_tokenizer.outputs(made.resolved), write_repository.OUTPUT)
    own = [made.digests.of_step(step) for step in made.own_steps if step.output in outputs]
    return digest_of([made.resolved.loaded.digest, own, engines])


def check_key(made: BuildPlan, only: Role | None, asked: str) -> None:
    """Raises UnavailableError if the plan would make another build than the one that the key names."""
    if key_of(made, only) != asked:
        what, recipe = only or "pair", made.resolved.loaded.path
        problem = f"would make another {what} than the planned one, {asked[:12]}"
        repair = "the recipe, a model or trtspec has changed since the job was planned: plan it again"
        raise UnavailableError(recipe, problem, repair)
