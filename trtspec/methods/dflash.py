"""Drafts of a DFlash head; its format is in `models/heads/dflash.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.method import Method


class DFlashMethod(Method):
    """A head fills a block of masked tokens at once, from the target's states after some layers (z-lab)."""

    has_model = is_head = True
    kind: Literal["dflash"] = Field(description="The name of this method.")
