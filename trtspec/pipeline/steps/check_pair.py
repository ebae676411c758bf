"""The step that judges the models: each by itself, and a target beside its draft or its head."""

from __future__ import annotations

from pathlib import Path

from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.pipeline.plan.facts import PlanFacts, is_config, made_of
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step

KIND, HEAD_KIND, MODEL_KIND = "check pair", "check head", "check model"
KINDS = (KIND, HEAD_KIND, MODEL_KIND)


def step(resolved: Resolved, facts: PlanFacts) -> Step:
    """Returns the check of a target, with a draft that is another model or with a head on it."""
    target, recipe = facts.target, resolved.loaded.recipe
    draft, longest = resolved.engines.get(Role.DRAFT), resolved.target.options.max_seq_len
    version, overrides = facts.host.versions.get("trtspec"), resolved.target.runner.overrides(recipe)
    kind, summary, models = MODEL_KIND, "the target and its tokenizer fit together", [target]
    values = {"max_seq_len": longest, "translates": resolved.translates, "overrides": overrides}
    if head := facts.head:
        method = recipe.speculation.method.kind
        kind, summary = HEAD_KIND, f"the head is of method {method}, and fits the target"
        values = {"head": dict(head.files), "method": method}
    elif draft and draft.layers is None:
        kind, summary = KIND, "target and draft fit together"
        models.append(facts.models[Role.DRAFT])

    def check(_: Path, advance: Advance) -> None:
        from trtspec.pipeline.inspection.pair import judge

        judge(resolved, facts)

    return Step(
        kind=kind,
        summary=summary,
        inputs=tuple(model.name for model in (*models, *([head] if head else []))),
        output=None,
        command=("trtspec", "check", str(resolved.loaded.path)),
        made_of=made_of(is_config, *models, version=version, **values),
        action=check,
    )
