"""Drafts of a DSpark head; its format is in `models/heads/dflash.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.method import Method


class DSparkMethod(Method):
    """A head fills a block at once, in which each token depends on the one before (DeepSeek)."""

    has_model = is_head = True
    kind: Literal["dspark"] = Field(description="The name of this method.")
