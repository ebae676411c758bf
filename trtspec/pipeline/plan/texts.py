"""Chooses the longest sequence, for every backend; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trtspec.base.roles import Role
from trtspec.pipeline.plan.choices import Chooser, Origin


@dataclass(frozen=True, slots=True)
class TextBound:
    """A length that a default does not exceed."""

    tokens: int
    reason: str


def choose_max_seq_len(choose: Chooser, longest: Mapping[Role, int], bounds: Iterable[TextBound]) -> int:
    """Returns the tokens of the longest sequence, prompt and answer together.

    `longest` is what each model was made for, in tokens. A length in the recipe overrides the `bounds`.
    Raises RecipeError for more than the target was made for.
    """
    shorter = min(longest, key=lambda role: longest[role])
    own = TextBound(longest[shorter], f"the longest sequence that the {shorter} supports")
    found = min((own, *bounds), key=lambda bound: bound.tokens)
    origin: Origin = "model" if found is own else "default"
    length: int = choose("engine.max_seq_len", found.tokens, found.reason, origin)
    if length > longest[Role.TARGET]:
        problem = f"{length} is more than the target supports: {longest[Role.TARGET]} tokens"
        raise choose.error("engine.max_seq_len", problem, f"at most {longest[Role.TARGET]}")
    return length
