"""Rules between the keys of a recipe whose target's engine has its draft inside. They are pure."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.base.findings import Finding
from trtspec.recipe.schema import Recipe


def inside_contradictions(recipe: Recipe) -> Iterator[Finding]:
    """Finds keys that an engine with its draft inside does not have."""
    if not recipe.drafts_inside:
        return
    speculation = recipe.speculation
    for key, reason in speculation.method.lacking_inside.items():
        if recipe.written(key) is not None:
            yield Finding(key, reason, "remove this line")
    longest, most = speculation.max_draft_len, speculation.method.most_inside
    if longest is not None and most is not None and longest > most:
        problem = f"is the size of the tree, which has {most} nodes at most"
        yield Finding("speculation.max_draft_len", problem, f"at most {most}")
    if recipe.target.parallel.pipeline > 1:
        problem = f"TensorRT-LLM's {speculation.method.kind.capitalize()} has no pipeline ranks"
        yield Finding("target.parallel.pipeline", problem, "write tensor ranks instead")
