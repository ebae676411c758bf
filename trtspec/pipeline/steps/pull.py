"""Finds engines in a store by their keys, and pulls each by one step, instead of the steps that make it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from trtspec.base.digest import digest_of
from trtspec.base.roles import Role
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step, name_of
from trtspec.pipeline.steps import (
    build,
    calibrate,
    choose_layers,
    convert,
    copy_tokenizer,
    write_repository,
)
from trtspec.pipeline.store import transfer
from trtspec.pipeline.store.entry import Entry, Platform, platform_of
from trtspec.pipeline.store.store import Store

KIND = "pull"
MAKERS = (choose_layers.KIND, calibrate.KIND, convert.KIND, convert.VERIFY, build.KIND)


@dataclass(frozen=True, slots=True)
class StoredEngine:
    """An engine that the store has, instead of the steps that make it."""

    store: Store
    entry: Entry


def keys_of(resolved: Resolved, steps: Iterable[Step], made_of: Mapping[str, str]) -> dict[Role | None, str]:
    """Returns what stores know each engine by, and under None the build, however its engines are made.

    `steps` are those that make everything here but the manifest; `made_of` has their digests by their names.
    """
    made = [step for step in steps if step.output]
    keys: dict[Role | None, str] = {
        role: digest_of([made_of[step.name] for step in made if step.role is role and step.kind in MAKERS])
        for role in resolved.engines
    }
    served = (*copy_tokenizer.outputs(resolved), write_repository.OUTPUT)
    own = [made_of[step.name] for step in made if step.output in served]
    return {**keys, None: digest_of([resolved.loaded.digest, own, list(keys.values())])}


def unbuilt(
    resolved: Resolved, keys: Mapping[Role | None, str], undone: Collection[str], tensorrt: str | None
) -> Iterator[tuple[Role, Platform, str]]:
    """Yields the engines that would have to be built, with the platform and the key of each in a store.

    `undone` names the steps that are not done. `tensorrt` is as for `engine_platform`.
    """
    for role in resolved.engines:
        if name_of(build.KIND, role) in undone:
            yield role, engine_platform(resolved, role, tensorrt), keys[role]


def engine_platform(resolved: Resolved, role: Role, tensorrt: str | None) -> Platform:
    """Returns the platform of one engine; that of a build is its target's, which loads on fewer machines.

    `tensorrt` is the version that builds, None for that of the release's image.
    """
    recipe = resolved.loaded.recipe
    release = resolved.engines[role].runner.engine_release(recipe)
    return platform_of(recipe.hardware.gpu, release, tensorrt)


def step(role: Role, stored: StoredEngine) -> Step:
    entry, store, output = stored.entry, stored.store, build.engine(role)
    return Step(
        kind=KIND,
        role=role,
        summary=f"the engine of {entry.created}, from {store}",
        inputs=(),
        output=output,
        command=("trtspec", "store", "pull", str(store), entry.digest[:12], "--output", output),
        made_of=["pull", entry.digest],
        action=partial(transfer.pull, store, entry),
        size=entry.size,
    )


def in_place(steps: Sequence[Step], found: Mapping[Role, StoredEngine]) -> list[Step]:
    """Returns the steps; for each engine that was found, one that pulls it replaces those that make it."""
    made: list[Step] = []
    for each in steps:
        if each.role not in found or each.kind not in MAKERS:
            made.append(each)
        elif each.role and each.kind == build.KIND:
            made.append(step(each.role, found[each.role]))
    return made


def provenance(found: Mapping[Role, StoredEngine]) -> dict[str, Any]:
    """Returns what a manifest says of the pulled engines, by its fields and by role.

    It is what their own manifests say of them, and under `pulled` the tools and commands that made them.
    """
    entries = {role: stored.entry for role, stored in found.items()}
    said = {
        field: {
            role: value
            for role, entry in entries.items()
            if (value := entry.manifest.get(field, {}).get(role)) is not None
        }
        for field in ("calibration", "quality", "layers")
    }
    return {**said, "pulled": {role: _made(role, entry) for role, entry in entries.items()}}


def _made(role: Role, entry: Entry) -> dict[str, Any]:
    makers = {name_of(kind, role) for kind in MAKERS}
    kept = {key: entry.manifest.get(key) for key in ("tools", "packages", "image", "gpu")}
    for key in ("commands", "times"):
        by_step = entry.manifest.get(key) or {}
        kept[key] = {step: value for step, value in by_step.items() if step in makers}
    return {"entry": entry.digest, "created": entry.created, **kept}
