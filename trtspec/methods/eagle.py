"""Drafts of an EAGLE head; its format is in `models/heads/eagle.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.method import Method


class EagleMethod(Method):
    """A head proposes from the target's last states (Li et al. 2024, arXiv 2401.15077)."""

    has_model = is_head = True
    kind: Literal["eagle"] = Field(description="The name of this method.")
