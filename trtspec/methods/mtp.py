"""Drafts of the target's own layers for multi-token prediction; `models/mtp.py` finds them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.method import Method


class MtpMethod(Method):
    """Layers that the target was trained with propose from its last states (DeepSeek-V3)."""

    is_head = in_target = True
    kind: Literal["mtp"] = Field(description="The name of this method.")
