"""Rules between the keys of a recipe whose target's engine has its draft inside. They are pure."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.base.findings import Finding
from trtspec.methods.medusa import NODES
from trtspec.recipe.schema import Recipe

_BY_ITSELF = "an engine with Medusa's heads drafts by itself, as much in every step of every request"
_LACKING = {
    "speculation.mode": "an engine with Medusa's heads verifies what these propose: its mode is medusa",
    "speculation.policy": _BY_ITSELF,
    "speculation.num_draft_tokens": f"{_BY_ITSELF}; max_draft_len is the size of its tree",
    "speculation.share": _BY_ITSELF,
    "serving.draft_timeout_microseconds": "no draft is waited for: it is made with the step before",
}
"""Keys that such an engine has not, by the reason."""


def inside_contradictions(recipe: Recipe) -> Iterator[Finding]:
    """Finds keys that an engine with its draft inside does not have."""
    if not recipe.drafts_inside:
        return
    for key, reason in _LACKING.items():
        if recipe.written(key) is not None:
            yield Finding(key, reason, "remove this line")
    longest = recipe.speculation.max_draft_len
    if longest is not None and longest > NODES:
        problem = f"is the size of the tree, which has {NODES} nodes at most"
        yield Finding("speculation.max_draft_len", problem, f"at most {NODES}")
    if recipe.target.parallel.pipeline > 1:
        problem = "TensorRT-LLM's Medusa has no pipeline ranks"
        yield Finding("target.parallel.pipeline", problem, "write tensor ranks instead")
