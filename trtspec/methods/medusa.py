"""Drafts of Medusa's heads; its format is in `models/heads/medusa.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.method import Method

NODES = 63
"""Nodes of the tree that Medusa's authors and NVIDIA's examples use; an engine verifies one token more."""

_BY_ITSELF = "an engine with Medusa's heads drafts by itself, the same number of tokens in every step"
_LACKING = {
    "speculation.mode": "an engine with Medusa's heads verifies what these propose: its mode is medusa",
    "speculation.policy": _BY_ITSELF,
    "speculation.num_draft_tokens": f"{_BY_ITSELF}; max_draft_len is the size of its tree",
    "speculation.share": _BY_ITSELF,
    "serving.draft_timeout_microseconds": "the server waits for no draft: the step before makes it",
}


class MedusaMethod(Method):
    """Heads propose a token each from the target's last state (Cai et al. 2024, arXiv 2401.10774)."""

    has_model = is_head = True
    lacking_inside = _LACKING
    most_inside = NODES
    kind: Literal["medusa"] = Field(description="The name of this method.")
