"""Defines the base of every part of a recipe."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Any part of a recipe: immutable, no key that the schema lacks, no silent conversion between types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


def with_kind(section: object) -> object:
    """Returns a section that is written by the name of its kind alone as that kind with its defaults."""
    return {"kind": section} if isinstance(section, str) else section
