"""The steps that check that the models fit together: a target with its draft, or with its head."""

from __future__ import annotations

from pathlib import Path

from trtspec.backends.table import backend_named
from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.pipeline.plan.facts import HeadFacts, PlanFacts
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps.reads import digest_of_files, is_config

KIND, HEAD_KIND = "check pair", "check head"


def steps(resolved: Resolved, facts: PlanFacts) -> list[Step]:
    """Returns the check of a draft that is another model than the target, or a head on it."""
    if facts.head:
        return [_head_step(resolved, facts, facts.head)]
    draft = resolved.engines.get(Role.DRAFT)
    return [_step(resolved, facts)] if draft and draft.layers is None else []


def _step(resolved: Resolved, facts: PlanFacts) -> Step:
    target, draft, longest = facts.target, facts.models[Role.DRAFT], resolved.target.options.max_seq_len
    translates, backend = resolved.translates, resolved.backend
    version, recipe = facts.host.versions.get("trtspec"), resolved.loaded.path
    overrides = backend_named(backend).overrides(resolved.loaded.recipe)

    def check(_: Path, advance: Advance) -> None:
        from trtspec.models.pair import compare, read_member, refuse

        is_built = backend_named(backend).builds_engines
        one = read_member(target.source.folder, for_engines=is_built, overrides=overrides)
        other = read_member(draft.source.folder, for_engines=is_built, overrides=None)
        refuse(str(recipe), compare(one, other, longest, translates=translates), backend)

    return Step(
        kind=KIND,
        summary="target and draft fit together",
        inputs=(target.name, draft.name),
        output=None,
        command=("trtspec", "check", str(recipe)),
        digest=digest_of_files(
            is_config,
            target,
            draft,
            version=version,
            max_seq_len=longest,
            translates=translates,
            overrides=overrides,
        ),
        action=check,
    )


def _head_step(resolved: Resolved, facts: PlanFacts, head: HeadFacts) -> Step:
    loaded, version = resolved.loaded, facts.host.versions.get("trtspec")
    method, backend = loaded.recipe.speculation.method.kind, loaded.recipe.runner

    def check(_: Path, advance: Advance) -> None:
        from trtspec.models.pair import read_member, refuse
        from trtspec.pipeline.inspection.pair import compare_head

        is_built, overrides = backend.builds_engines, backend.overrides(loaded.recipe)
        target = read_member(facts.target.source.folder, for_engines=is_built, overrides=overrides).source
        refuse(str(loaded.path), compare_head(head.head, method, target), backend.name)

    return Step(
        kind=HEAD_KIND,
        summary=f"the head is of method {method}, and fits the target",
        inputs=(facts.target.name, head.name),
        output=None,
        command=("trtspec", "check", str(loaded.path)),
        digest=digest_of_files(
            is_config, facts.target, head=dict(head.digests or {}), method=method, version=version
        ),
        action=check,
    )
