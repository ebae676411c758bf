"""The table of the methods, a line each: a recipe, its commands and the README have those of this table."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from trtspec.methods.draft_model import DraftModelMethod
from trtspec.methods.eagle import EagleMethod
from trtspec.methods.eagle3 import Eagle3Method
from trtspec.methods.hybrid import Hybrid
from trtspec.methods.medusa import MedusaMethod
from trtspec.methods.method import Method
from trtspec.methods.ngram import Ngram
from trtspec.methods.suffix import Suffix

METHODS: dict[str, type[Method]] = {
    "draft_model": DraftModelMethod,
    "ngram": Ngram,
    "hybrid": Hybrid,
    "suffix": Suffix,
    "eagle3": Eagle3Method,
    "eagle": EagleMethod,
    "medusa": MedusaMethod,
}
"""The methods by their names."""
WITHOUT_MODEL = tuple(name for name, method in METHODS.items() if not method.has_model)
"""The methods whose recipe names no draft."""


def _named(method: object) -> object:
    """A method by its name alone is that method with its defaults."""
    return {"kind": method} if isinstance(method, str) else method


if TYPE_CHECKING:
    AnyMethod = Method
else:
    _SECTIONS = reduce(or_, METHODS.values())
    AnyMethod = Annotated[
        _SECTIONS,
        Field(discriminator="kind"),
        BeforeValidator(_named, json_schema_input_type=Literal[tuple(METHODS)] | _SECTIONS),
    ]
