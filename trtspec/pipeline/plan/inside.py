"""The choices for a draft that a target's engine has inside; pure."""

from __future__ import annotations

from trtspec.backends.backend import Backend
from trtspec.checkpoint.mapping import Mapping
from trtspec.models.families import family_of
from trtspec.models.source import Source
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.choices import Chooser
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.resolved import InsidePlan


def choose_inside(choose: Chooser, facts: PlanFacts, backend: Backend) -> InsidePlan | None:
    """Returns the draft of an engine, and its files if it has any; None if the engine has none inside.

    Raises RecipeError for a number of tokens that it cannot propose, and ModelError for heads or a target
    that the engine cannot have.
    """
    method, found = choose.loaded.recipe.speculation.method, facts.head
    kind = backend.inside.get(method.kind)
    if kind is None:
        return None
    usual = kind.usual(facts.target.source, method, found.head if found else None)
    size: int = choose("speculation.max_draft_len", usual.num_drafted, usual.reason)
    try:
        draft = usual.of_size(size)
    except ValueError as error:
        raise choose.error("speculation.max_draft_len", *error.args) from error
    return InsidePlan(found, draft)


def check_ranks(choose: Chooser, inside: InsidePlan, mapping: Mapping) -> None:
    """Raises RecipeError for a draft that cannot be split over the target's ranks."""
    if found := inside.draft.misfit(mapping):
        raise choose.error(f"target.{found.subject}", f"of the draft inside, {found.problem}", found.repair)


def check_cyclic(choose: Chooser, source: Source, options: BuildOptions) -> None:
    """Raises RecipeError for sequences that are longer than a sliding window.

    The KV cache of a window is cyclic: rejected drafts have overwritten tokens that are still seen.
    """
    window, drafts = family_of(source).window(source), options.max_draft_len
    if window is not None and options.max_seq_len + drafts > window:
        problem = (
            f"tokens attend to the last {window}, and rejected drafts overwrite some of these in the KV cache"
        )
        raise choose.error("engine.max_seq_len", problem, f"at most {window - drafts}, drafts included")
