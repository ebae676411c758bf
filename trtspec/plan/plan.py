"""The plan: what `build`, `convert`, `plan` and `--dry-run` all go by."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtspec.engine.store.store import Store
from trtspec.plan.digests import FileDigests
from trtspec.plan.facts import Facts, gather
from trtspec.plan.records import FOLDER, has_records
from trtspec.plan.resolve import Resolved, build_folder, resolve
from trtspec.plan.runner import pending
from trtspec.plan.step import Step
from trtspec.plan.steps import make_steps
from trtspec.plan.stored import look
from trtspec.recipe.loader import load
from trtspec.watch import Watch


@dataclass(frozen=True, slots=True)
class Plan:
    """What was found, what follows from it and the recipe, the steps, and the digests of files.

    `own_steps` are those without a store, which make everything here.
    """

    facts: Facts
    resolved: Resolved
    steps: list[Step]
    own_steps: list[Step]
    digests: FileDigests

    @property
    def output(self) -> Path:
        return self.resolved.output

    def pending(self) -> set[str]:
        """The names of the steps that are not done."""
        return pending(self.steps, self.output, self.digests)


def make_plan(
    recipe: Path,
    flags: Mapping[str, str | None],
    to_run: bool,
    watch: Watch,
    container: bool = False,
    store: Store | None = None,
) -> Plan:
    """Reads the recipe and the world. Only a plan to run, or with a store, reads the weights of a pair that
    was never built.

    With `container` the engines are built in one of NVIDIA's image, and not by what is installed here.
    """
    loaded = load(recipe)
    output = build_folder(loaded, flags, os.environ)
    digests = FileDigests(output / FOLDER / "digests.json", watch)
    facts = gather(loaded, digests if to_run or store or has_records(output) else None, watch, container)
    resolved = resolve(loaded, facts, flags, os.environ)
    own = steps = make_steps(resolved, facts)
    if store:
        found = look(store, own, pending(own, output, digests), resolved, facts.versions.get("tensorrt"))
        steps = make_steps(resolved, facts, found)
    return Plan(facts, resolved, steps, own, digests)
