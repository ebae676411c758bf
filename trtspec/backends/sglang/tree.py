"""Trees of drafts, of which each step proposes several tokens: SGLang has them, and a recipe no key for them.

Their flags are in `engine.extra_args`, and override those of a chain, which stand before them. The number of
steps stays K. `_handle_eagle_family` in arg_groups/speculative_hook.py of 0.5.23 needs all three numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtspec.backends.sglang.launch import METHODS, STEPWISE, TOKENS
from trtspec.base.findings import Finding
from trtspec.pipeline.plan.resolved import Chooser
from trtspec.recipe.migration.command import Option, Syntax, options
from trtspec.recipe.migration.reading import is_whole
from trtspec.recipe.schema import Recipe

TOPK = "--speculative-eagle-topk"


@dataclass(frozen=True, slots=True)
class DraftTree:
    """The shape of a tree."""

    topk: int
    """The tokens that each step proposes after one of the step before."""
    verified: int
    """The tokens that the target verifies in a round; one of them is the token before the draft."""

    def num_nodes(self, longest: int) -> int:
        """Returns the proposed tokens that a round has room for (`spec_decode_alloc_len_per_request`)."""
        return max(self.topk * longest, self.verified) - 1

    def check(self, choose: Chooser, steps: int) -> None:
        """Raises RecipeError for more tokens than the steps propose, with which SGLang does not start.

        The first step proposes `topk` tokens, each later one `topk` after each of `topk` tokens
        (`organize_draft_results` in srt/speculative/eagle_utils.py).
        """
        most = 1 + self.topk + (steps - 1) * self.topk**2
        if self.verified > most:
            shape = f"{TOPK} {self.topk} and speculation.num_draft_tokens: {steps}"
            problem = f"{TOKENS} {self.verified} is more than the {most} that {shape} make"
            repair = f"at most {most} there, or a larger speculation.num_draft_tokens"
            raise choose.error("engine.extra_args", problem, repair)


def tree(topk: str | None, verified: str | None) -> DraftTree | None:
    """Returns the tree of two flags' values; None if they are no tree's."""
    if not (topk and verified and is_whole(topk) and is_whole(verified)):
        return None
    return DraftTree(int(topk), int(verified)) if int(topk) > 1 and int(verified) > 1 else None


def tree_of(recipe: Recipe, syntax: Syntax) -> DraftTree | None:
    """Returns the tree that a recipe passes on; None if its drafts are chains."""
    if METHODS.get(recipe.speculation.method.kind) not in STEPWISE:
        return None
    found = {item.name: item.value for item in _flags(recipe, syntax)}
    return tree(found.get(TOPK), found.get(TOKENS))


def misplaced(recipe: Recipe, syntax: Syntax) -> Iterator[Finding]:
    """Finds flags of a tree where drafts are chains, which are as long as `speculation` says."""
    if tree_of(recipe, syntax) is None:
        for item in _flags(recipe, syntax):
            problem = f"{item.name} is not passed on: speculation says it, unless both flags make a tree"
            yield Finding("engine.extra_args", problem, "remove it")


def _flags(recipe: Recipe, syntax: Syntax) -> Iterator[Option]:
    for item in options(recipe.engine.extra_args, syntax):
        if isinstance(item, Option) and item.name in (TOPK, TOKENS):
            yield item
