"""Drafts of an EAGLE-3 head; its format is in `models/heads/eagle3.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.method import Method


class Eagle3Method(Method):
    """A head proposes from the target's states after three layers (Li et al. 2025, arXiv 2503.01840)."""

    has_model = is_head = True
    kind: Literal["eagle3"] = Field(description="The name of this method.")
