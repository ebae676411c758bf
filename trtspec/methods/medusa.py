"""Drafts of Medusa's heads; its format is in `models/heads/medusa.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.method import Method

NODES = 63
"""Nodes of the tree that Medusa's authors and NVIDIA's examples use; an engine verifies one token more."""


class MedusaMethod(Method):
    """Heads propose a token each from the target's last state (Cai et al. 2024, arXiv 2401.10774)."""

    has_model = is_head = True
    kind: Literal["medusa"] = Field(description="The name of this method.")
