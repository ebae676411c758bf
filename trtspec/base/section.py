"""Defines the base of every part of a recipe."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Any part of a recipe: immutable, no key that the schema lacks, no silent conversion between types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())
