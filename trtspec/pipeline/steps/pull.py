"""Pulls an engine that a store has by one step, instead of the steps that make it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from trtspec.base.roles import Role
from trtspec.pipeline.run.step import Step, name_of
from trtspec.pipeline.steps import (
    build,
    calibrate,
    choose_layers,
    convert,
)
from trtspec.pipeline.store import transfer
from trtspec.pipeline.store.store import Entry, Store

KIND = "pull"
MAKERS = (choose_layers.KIND, calibrate.KIND, convert.KIND, convert.VERIFY, build.KIND)


@dataclass(frozen=True, slots=True)
class StoredEngine:
    """An engine that the store has, instead of the steps that make it."""

    store: Store
    entry: Entry


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
