"""The choices for heads that a target's engine of TensorRT-LLM has inside: Medusa's; pure."""

from __future__ import annotations

from trtspec.backends.engine.engine_options import BuildOptions
from trtspec.checkpoint.medusa import MedusaCheckpoint, check_medusa
from trtspec.models.families import family_of
from trtspec.models.heads.choices import choices
from trtspec.models.source import Source
from trtspec.pipeline.plan.choices import Chooser
from trtspec.pipeline.plan.facts import ModelFacts, PlanFacts
from trtspec.pipeline.plan.resolved import InsidePlan


def choose_inside(choose: Chooser, facts: PlanFacts, backend: str) -> InsidePlan | None:
    """Returns the heads and the tree that they propose; None where the engine has no draft inside.

    Raises RecipeError for a tree of more nodes than the heads have paths, and ModelError for heads or a
    target that the engine cannot have.
    """
    method, found = choose.loaded.recipe.speculation.method.kind, facts.head
    if backend != "tensorrt_llm" or method != "medusa" or found is None:
        return None
    head = check_medusa(facts.target.source, found.head)
    usual = choices(head.count)
    reason = "the tree's nodes, as many as Medusa's authors use" if head.count > 1 else "all paths"
    size: int = choose("speculation.max_draft_len", len(usual), reason)
    tree = choices(head.count, size)
    if len(tree) < size:
        problem = f"{size} is more than the nodes of {head.count} head's tree: {len(tree)}"
        raise choose.error("speculation.max_draft_len", problem, f"at most {len(tree)}")
    model = ModelFacts(found.name, found.revision, found.source, found.digests)
    return InsidePlan(model, MedusaCheckpoint(head, tuple(tree)))


def check_cyclic(choose: Chooser, source: Source, options: BuildOptions) -> None:
    """Raises RecipeError for texts that leave a sliding window.

    The KV cache of a window is cyclic: drafts that are refused have overwritten tokens that are still seen.
    """
    window, drafts = family_of(source).window(source), options.max_draft_len
    if window is not None and options.max_seq_len + drafts > window:
        problem = f"tokens see {window} before them, and refused drafts overwrite some of these"
        raise choose.error("engine.max_seq_len", problem, f"at most {window - drafts}, drafts included")
