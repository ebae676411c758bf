"""Defines the roles of a model in speculative decoding."""

from __future__ import annotations

from enum import Enum


class Role(str, Enum):
    """The role of a model. It names a section of the recipe and a folder of the build: its text is fixed."""

    TARGET = "target"
    DRAFT = "draft"

    def __str__(self) -> str:
        return self.value
