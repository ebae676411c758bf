"""What a model does in speculative decoding."""

from __future__ import annotations

from enum import Enum


class Role(str, Enum):
    """Also the name of a recipe's section and of a build's folder, so its text is part of both formats."""

    TARGET = "target"
    DRAFT = "draft"

    def __str__(self) -> str:
        return self.value
