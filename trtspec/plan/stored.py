"""The store's part in a build: what it has is pulled instead of built, what it lacks is pushed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.engine.store import pull as store_pull
from trtspec.engine.store import push as store_push
from trtspec.engine.store.entry import Entry, Role
from trtspec.engine.store.platform import Platform, base_version
from trtspec.engine.store.store import Store
from trtspec.plan.digests import digest_of
from trtspec.plan.resolved import Resolved
from trtspec.plan.step import Step
from trtspec.recipe.gpus import GPUS
from trtspec.recipe.releases import Release
from trtspec.watch import Advance, Watch

ROLES: tuple[Role, ...] = ("target", "draft")
READY = ("tokenizer", "target/engine", "draft/engine", "model_repository", "manifest.json")
"""What of a build directory is served."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An engine that the store has, in place of the steps that make it."""

    store: Store
    entry: Entry


def platform_of(gpu: str, release: Release | None, tensorrt: str | None = None) -> Platform:
    """What the engines of a recipe run on; the torch backend has no release.

    `tensorrt` is the version that builds, None for that of the release's image.
    """
    if release is None:
        return Platform("torch")
    version = base_version(tensorrt or release.tensorrt)
    return Platform("tensorrt_llm", GPUS[gpu].sm, version, release.version)


def engine_key(steps: Sequence[Step], role: str) -> str | None:
    """Stands for all that an engine is made of; None where the models' files have not been read."""
    makers = _makers(role)
    digests = [step.digest for step in steps if step.name in makers and step.output]
    return None if None in digests else digest_of(digests)


def with_stored(steps: Sequence[Step], found: Mapping[str, Stored]) -> list[Step]:
    """The steps, with one that pulls in place of those that make an engine which was found."""
    made: list[Step] = []
    for step in steps:
        role = step.name.rpartition(" ")[2]
        if role not in found or step.name not in _makers(role):
            made.append(step)
        elif step.name == f"build {role}":
            made.append(_pull(role, step, found[role]))
    return made


def look(
    store: Store, steps: Sequence[Step], undone: set[str], resolved: Resolved, tensorrt: str | None
) -> dict[str, Stored]:
    """The engines that would have to be built, and that the store has; raises StoreError.

    `tensorrt` is that of `platform_of`.
    """
    platform, found = _platform(resolved, tensorrt), dict[str, Stored]()
    for role in ROLES:
        key = engine_key(steps, role)
        if key and f"build {role}" in undone and (entry := store.find(platform, key)):
            found[role] = Stored(store, entry)
    return found


def push_build(store: Store, steps: Sequence[Step], resolved: Resolved, watch: Watch) -> list[Entry]:
    """Pushes each engine, and the pair that is ready to be served, unless the store has it; gives the new.

    `steps` are those without a store. Raises StoreError.
    """
    build = resolved.output
    manifest = json.loads((build / "manifest.json").read_text(encoding="utf-8"))
    platform = _platform(resolved, manifest["tools"].get("tensorrt"))
    engines = [(role, engine_key(steps, role), build / role / "engine", (".",)) for role in ROLES]
    pair: tuple[Role, str, Path, tuple[str, ...]] = ("pair", _pair_key(steps, manifest), build, READY)
    pushed = []
    for role, key, folder, paths in (*engines, pair):
        if key is None or store.find(platform, key):
            continue
        with watch(f"read {role}", None) as advance:
            files, folders = store_push.describe(folder, paths, advance)
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        entry = Entry(role, manifest["name"], platform, key, created, files, folders, manifest)
        with watch(f"push {role} to {store}", entry.size) as advance:
            store_push.push(store, entry, folder, advance)
        pushed.append(entry)
    return pushed


def recorded(found: Mapping[str, Stored], key: str) -> dict[str, Any]:
    """What the manifests of the engines that were pulled have of target and draft under `key`."""
    made = {role: stored.entry.manifest.get(key, {}).get(role) for role, stored in found.items()}
    return {role: value for role, value in made.items() if value is not None}


def provenance(found: Mapping[str, Stored]) -> dict[str, Any]:
    """What made the engines that were pulled."""
    return {role: _made(role, stored.entry) for role, stored in found.items()}


def _made(role: str, entry: Entry) -> dict[str, Any]:
    kept = {key: entry.manifest.get(key) for key in ("tools", "packages", "image", "gpu")}
    for key in ("commands", "times"):
        by_step = entry.manifest.get(key) or {}
        kept[key] = {step: value for step, value in by_step.items() if step in _makers(role)}
    return {"entry": entry.digest, "created": entry.created, **kept}


def _platform(resolved: Resolved, tensorrt: str | None) -> Platform:
    return platform_of(resolved.loaded.recipe.hardware.gpu, resolved.release, tensorrt)


def _makers(role: str) -> tuple[str, ...]:
    return tuple(f"{verb} {role}" for verb in ("calibrate", "convert", "verify", "build"))


def _pair_key(steps: Sequence[Step], manifest: Mapping[str, Any]) -> str:
    """The same whether the engines were built or pulled."""
    own = [step.digest for step in steps if step.name in ("copy tokenizer", "write repository")]
    return digest_of([manifest["recipe"], own, [engine_key(steps, role) for role in ROLES]])


def _pull(role: str, build: Step, stored: Stored) -> Step:
    entry, store = stored.entry, stored.store
    return Step(
        name=f"pull {role}",
        summary=f"the engine of {entry.created}, from {store}",
        inputs=(),
        output=build.output,
        command=("trtspec", "store", "pull", str(store), entry.digest[:12], "--output", str(build.output)),
        digest=digest_of(["pull", entry.digest]),
        action=partial(_run_pull, store, entry),
        size=entry.size,
    )


def _run_pull(store: Store, entry: Entry, output: Path, advance: Advance) -> None:
    store_pull.pull(store, entry, output, advance)
