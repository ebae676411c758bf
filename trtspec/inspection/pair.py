"""Compares the models of a recipe, if this machine has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import ModelError
from trtspec.findings import Finding
from trtspec.models.hub import cached_folder
from trtspec.models.pair import Member, compare, read_member
from trtspec.recipe.loader import LoadedRecipe
from trtspec.roles import Role


@dataclass(frozen=True, slots=True)
class PairReport:
    """What was found; `unseen` says why a model could not be looked at.

    If one could not, nothing was compared, and there are no findings.
    """

    loaded: LoadedRecipe
    sides: Mapping[Role, Member]
    unseen: Mapping[Role, str]
    findings: list[Finding]


def inspect_pair(loaded: LoadedRecipe) -> PairReport:
    """Compares what this machine has, without a download; raises ModelError for a folder that is no model."""
    sides, unseen = dict[Role, Member](), dict[Role, str]()
    for role, model in loaded.recipe.models.items():
        location = loaded.model_location(model)
        folder = location if isinstance(location, Path) else cached_folder(location, model.revision)
        if folder is None:
            unseen[role] = f"{location} is on the Hub and not on this machine"
            continue
        try:
            sides[role] = read_member(folder)
        except ModelError as error:
            if folder == location:
                raise
            unseen[role] = f"{location} is not whole in this machine's Hub cache: {error.problem}"
    findings = []
    if not unseen and Role.DRAFT in sides:
        findings = compare(sides[Role.TARGET], sides[Role.DRAFT], loaded.recipe.engine.max_seq_len)
    return PairReport(loaded, sides, unseen, findings)
