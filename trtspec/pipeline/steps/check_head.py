"""The step that checks that a head fits its target."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from trtspec.base.progress import Advance
from trtspec.pipeline.plan.facts import HeadFacts, PlanFacts
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps.reads import digest_of_files, is_config
from trtspec.recipe.loader import LoadedRecipe

KIND = "check head"


def step(resolved: Resolved, facts: PlanFacts, head: HeadFacts) -> Step:
    loaded, version = resolved.loaded, facts.host.versions.get("trtspec")
    method = loaded.recipe.speculation.method.kind
    return Step(
        kind=KIND,
        summary=f"the head is of method {method}, and fits the target",
        inputs=(facts.target.name, head.name),
        output=None,
        command=("trtspec", "check", str(loaded.path)),
        digest=digest_of_files(
            is_config, facts.target, head=dict(head.digests or {}), method=method, version=version
        ),
        action=partial(run, loaded),
    )


def run(loaded: LoadedRecipe, _: Path, advance: Advance) -> None:
    from trtspec.models.pair import refuse
    from trtspec.pipeline.inspection.pair import inspect_pair

    refuse(str(loaded.path), inspect_pair(loaded).findings, loaded.recipe.backend)
