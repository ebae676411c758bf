"""Describes a candidate: a method and, if it has one, a draft model in some precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trtspec.backends.table import runner_of
from trtspec.base.roles import Role
from trtspec.methods.table import METHODS
from trtspec.recipe.edit import written
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import Recipe
from trtspec.serving.drafters.source import DRAFT_MODEL, Drafting

Precision = Literal["float32", "float16", "bfloat16", "fp8"]


def tuned_methods() -> list[str]:
    """Returns the methods that can be tried: those of trtspec's own drafters except heads.

    Heads read their target's states.
    """
    return [name for name, method in METHODS.items() if not (method.is_head or method.of_servers)]


@dataclass(frozen=True, slots=True)
class CandidateDraft:
    """A draft model of a candidate."""

    location: Path | str
    """A folder or a Hub id. For layers of the target, the folder to write them to."""
    precision: Precision | None = None
    """The precision; None keeps the recipe's."""
    is_own: bool = False
    """True for the recipe's own draft."""
    layers: tuple[int, ...] = ()
    """The layers of the target of which the draft consists, if it does."""

    @property
    def name(self) -> str:
        """Its name for people."""
        if self.layers:
            name = f"layers {','.join(map(str, self.layers))} of the target"
        else:
            name = self.location.name if isinstance(self.location, Path) else self.location
        return f"{name} in {self.precision}" if self.precision else name


@dataclass(frozen=True, slots=True)
class Candidate:
    """A method with its draft, if it has one."""

    method: str
    draft: CandidateDraft | None

    @property
    def name(self) -> str:
        if self.draft is None:
            return self.method
        return self.draft.name if self.method == DRAFT_MODEL.kind else f"{self.method} with {self.draft.name}"

    def drafting(self, recipe: Recipe) -> Drafting:
        """Returns the method with its options: the recipe's, if it has the same method."""
        method = recipe.speculation.method
        if method.kind != self.method:
            method = METHODS[self.method](kind=self.method)
        return Drafting(self.method, method.options)

    def changes(self, recipe: Recipe, folder: Path | None) -> dict[str, Any]:
        """Returns the recipe keys to change for it; None removes a key.

        A draft's folder is written relative to `folder`, the recipe's, or as an absolute path if that is
        None.
        """
        changes: dict[str, Any] = {}
        if recipe.speculation.method.kind != self.method:
            changes["speculation.method"] = self.method
        if self.draft is None:
            return {"draft": None, "serving.draft_timeout_microseconds": None, **changes}
        if not self.draft.is_own:
            changes |= {"draft.model": written(self.draft.location, folder), "draft.revision": None}
            if recipe.draft and recipe.draft.layers_of_target:
                changes |= {"draft.layers_of_target": None, "draft.layer_search": None}
        if self.draft.precision == "fp8":
            changes["draft.quantization.weights"] = "fp8"
        elif self.draft.precision:
            changes |= {"draft.dtype": self.draft.precision, "draft.quantization": None}
        return changes


def candidates(
    loaded: LoadedRecipe,
    drafts: Sequence[CandidateDraft],
    precisions: Sequence[Precision],
    methods: Sequence[str],
) -> list[Candidate]:
    """Returns every combination: the recipe's own first, then those without a draft, then the others.

    The recipe's own draft is included. Without `precisions` each draft keeps its precision, and without
    `methods` all methods of the recipe's backend are tried.
    """
    recipe = loaded.recipe
    runner, release = runner_of(recipe), recipe.engine.release
    wanted = methods or [name for name in tuned_methods() if not runner.refusal(name, release)]
    location = loaded.locations.get(Role.DRAFT)
    own = [CandidateDraft(location, is_own=True)] if location else []
    models = [
        replace(draft, precision=precision)
        for draft in (*own, *drafts)
        for precision in (precisions or (draft.precision,))
    ]
    found = [
        Candidate(method, model)
        for method in wanted
        for model in (models if METHODS[method].has_model else (None,))
    ]

    def place(candidate: Candidate) -> tuple[bool, bool]:
        draft = candidate.draft
        is_recipes = candidate.method == recipe.speculation.method.kind and (draft is None or draft.is_own)
        return not is_recipes, draft is not None

    return sorted(found, key=place)
