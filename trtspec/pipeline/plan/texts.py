"""The choice of the longest text, whatever serves it; pure."""

from __future__ import annotations

from trtspec.base.roles import Role
from trtspec.pipeline.plan.choices import Chooser
from trtspec.pipeline.plan.facts import PlanFacts

MAX_SEQ_LEN = 8192


def choose_max_seq_len(choose: Chooser, facts: PlanFacts) -> int:
    """Returns the tokens of the longest text, prompt and answer together.

    Raises RecipeError for more than the target was made for.
    """
    longest = {role: model.source.max_position for role, model in facts.models.items()}
    shorter = min(longest, key=lambda role: longest[role])
    bounded = longest[shorter] > MAX_SEQ_LEN
    length: int = choose(
        "engine.max_seq_len",
        min(longest[shorter], MAX_SEQ_LEN),
        "keeps memory for many requests" if bounded else f"the longest text that the {shorter} was made for",
        "default" if bounded else "model",
    )
    if length > longest[Role.TARGET]:
        problem = f"{length} is more than the target was made for, {longest[Role.TARGET]} tokens"
        raise choose.error("engine.max_seq_len", problem, f"at most {longest[Role.TARGET]}")
    return length
