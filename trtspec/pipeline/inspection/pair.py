"""Compares the models of a recipe, if this machine has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trtspec.base.errors import ModelError
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.models.download import cached_folder
from trtspec.models.heads.check import check_head
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.reading import read_head
from trtspec.models.layers import draft_of
from trtspec.models.masked import check_parallel
from trtspec.models.mtp import MtpLayers, mtp_layers
from trtspec.models.pair import Member, compare, read_member
from trtspec.models.source import Source
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import Draft


@dataclass(frozen=True, slots=True)
class PairReport:
    """The result of a check of a pair.

    If a model could not be looked at, nothing was compared, and there are no findings.
    """

    loaded: LoadedRecipe
    sides: Mapping[Role, Member]
    unseen: Mapping[Role, str]
    """The reason why a model could not be looked at."""
    findings: list[Finding]
    head: HeadDescription | None = None
    """The draft that is a head."""

    @property
    def own_layers(self) -> MtpLayers | None:
        """The target's layers for multi-token prediction, if the method drafts with them."""
        if not self.loaded.recipe.speculation.method.in_target or Role.TARGET not in self.sides:
            return None
        return mtp_layers(self.sides[Role.TARGET].source)


def inspect_pair(loaded: LoadedRecipe) -> PairReport:
    """Compares what this machine has, without a download; raises ModelError for a folder that is no model."""
    method = loaded.recipe.speculation.method
    backend = loaded.recipe.runner
    sides, unseen, head = dict[Role, Member](), dict[Role, str](), None
    for role, location in loaded.locations.items():
        model = loaded.recipe.models[role]
        folder = cached_folder(location, model.revision)
        if folder is None:
            unseen[role] = f"{location} is on the Hub but not on this machine"
            continue
        try:
            if role is Role.DRAFT and method.is_head:
                head = read_head(folder)
                continue
            overrides = backend.overrides(loaded.recipe) if role is Role.TARGET else {}
            sides[role] = read_member(folder, for_engines=backend.builds_engines, overrides=overrides)
            if isinstance(model, Draft):
                sides[role] = replace(sides[role], source=draft_of(sides[role].source, model))
        except ModelError as error:
            if folder == location:
                raise
            unseen[role] = f"{location} is incomplete in this machine's Hub cache: {error.problem}"
    findings: list[Finding] = []
    if Role.TARGET in sides:
        findings += backend.misfits(loaded.recipe, sides[Role.TARGET].source)
    if not unseen and head:
        findings += compare_head(head, method.kind, sides[Role.TARGET].source)
    elif not unseen and Role.DRAFT in sides:
        recipe = loaded.recipe
        findings += compare(
            sides[Role.TARGET], sides[Role.DRAFT], recipe.engine.max_seq_len, translates=method.translates
        )
        if method.is_at_once:
            findings += check_parallel(sides[Role.DRAFT].source)
    return PairReport(loaded, sides, unseen, findings, head)


def compare_head(head: HeadDescription, method: str, target: Source) -> list[Finding]:
    """Returns what is wrong with a head as the draft of this target, by this method of a recipe."""
    findings = check_head(head, target)
    if head.method != method:
        problem = f"is {method}, but the draft is a head of method {head.method}"
        repair, effect = f"speculation.method: {head.method}", "the head cannot draft by this method"
        findings.insert(0, Finding("speculation.method", problem, repair, effect=effect))
    return findings
