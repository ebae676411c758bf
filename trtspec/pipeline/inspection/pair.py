"""Judges the models of a recipe, each by itself and the draft beside its target.

`check`, `plan`, `build` and `doctor` all ask here, so none of them passes what another refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trtspec.backends.backend import Backend
from trtspec.base.findings import Finding, Severity
from trtspec.base.roles import Role
from trtspec.models.heads.head import HeadDescription
from trtspec.models.mtp import MtpLayers, mtp_layers
from trtspec.models.pair import Member, compare, compare_head, past_embedding, refuse
from trtspec.models.source import Source
from trtspec.models.tokenizer import TokenizerTraits
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.recipe.loader import LoadedRecipe


@dataclass(frozen=True, slots=True)
class PairReport:
    """The result of a look at the models of a recipe.

    A draft and its target are compared only if both could be looked at.
    """

    loaded: LoadedRecipe
    sides: Mapping[Role, Member]
    unseen: Mapping[Role, str]
    """The reason why a model could not be looked at."""
    findings: list[Finding]
    """Errors come first."""
    alone: list[Finding]
    """Those of the findings that each model has by itself."""
    head: HeadDescription | None = None
    """The draft that is a head."""

    @property
    def own_layers(self) -> MtpLayers | None:
        """The target's layers for multi-token prediction, if the method drafts with them."""
        if not self.loaded.recipe.speculation.method.in_target or Role.TARGET not in self.sides:
            return None
        return mtp_layers(self.sides[Role.TARGET].source)


def judge(resolved: Resolved, facts: PlanFacts) -> list[Finding]:
    """Returns what each model of a plan shows by itself; raises PairError for models that do not fit, and as
    `inspect_pair`.
    """
    report = inspect_planned(resolved, facts)
    can_translate = resolved.target.runner.translates
    refuse(str(resolved.loaded.path), report.findings, can_translate=can_translate)
    return report.alone


def inspect_planned(resolved: Resolved, facts: PlanFacts) -> PairReport:
    """Returns what the models of a plan show; raises as `inspect_pair`."""
    unread = {role: model.not_read for role, model in facts.models.items() if model.not_read}
    sources = {role: model.source for role, model in facts.models.items() if role not in unread}
    unseen = {role: f"{error.subject} {error.problem}" for role, error in unread.items()}
    head, longest = facts.head.head if facts.head else None, resolved.target.options.max_seq_len
    return inspect_pair(resolved.loaded, resolved.target.runner, sources, unseen, head, longest)


def inspect_pair(
    loaded: LoadedRecipe,
    backend: Backend,
    sources: Mapping[Role, Source],
    unseen: Mapping[Role, str],
    head: HeadDescription | None = None,
    max_seq_len: int | None = None,
    tokenizers: Mapping[Role, TokenizerTraits] = MappingProxyType({}),
) -> PairReport:
    """Returns what these models of a recipe show; `max_seq_len` is the longest sequence in tokens.

    `tokenizers` are those that were read already.

    Raises ModelError for a tokenizer that cannot be read, and TensorError for tensors of which no engine can
    be built.
    """
    recipe = loaded.recipe
    translates = recipe.speculation.method.translates
    sides, alone = dict[Role, Member](), list[Finding]()
    for role, source in sources.items():
        like = tokenizers.get(role) or next((side.tokenizer for side in sides.values()), None)
        side = backend.member(source, recipe, role, like)
        reads = role is Role.TARGET or translates
        alone += past_embedding(role, source, side.tokenizer if reads else None)
        sides[role] = side
    findings, target, draft = [*alone], sides.get(Role.TARGET), sides.get(Role.DRAFT)
    if target:
        findings += backend.misfits(recipe, target.source)
    if target and head:
        findings += compare_head(head, recipe.speculation.method.kind, target.source)
    if target and draft:
        compared = compare(target, draft, max_seq_len, translates=translates)
        findings += [found for found in compared if found not in alone]
    findings.sort(key=lambda found: found.severity is not Severity.ERROR)
    return PairReport(loaded, sides, unseen, findings, alone, head)
