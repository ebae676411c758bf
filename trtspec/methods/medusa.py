"""Drafts of Medusa's heads; their format is in `models/heads/medusa.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.method import Method, lacking_with

NODES = 63
"""Nodes of the tree that Medusa's authors and NVIDIA's examples use; an engine verifies one token more."""
SIZE_OF_TREE = "max_draft_len is the size of its tree"
NO_WAIT = {"serving.draft_timeout_microseconds": "the server waits for no draft: the step before makes it"}


class MedusaMethod(Method):
    """Heads propose a token each from the target's last state (Cai et al. 2024, arXiv 2401.10774)."""

    has_model = is_head = True
    lacking_inside = {**lacking_with("Medusa's heads", "medusa", SIZE_OF_TREE), **NO_WAIT}  # noqa: RUF012
    most_inside = NODES
    kind: Literal["medusa"] = Field(description="The name of this method.")
