"""The type of a recipe's `speculation.method`: any method that the table has when this is imported."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from trtspec.base.section import with_kind
from trtspec.methods.method import Method
from trtspec.methods.table import METHODS

WITHOUT_MODEL = tuple(name for name, method in METHODS.items() if not method.has_model)
"""The methods whose recipe names no draft."""

if TYPE_CHECKING:
    AnyMethod = Method
else:
    _SECTIONS = reduce(or_, METHODS.values())
    AnyMethod = Annotated[
        _SECTIONS,
        Field(discriminator="kind"),
        BeforeValidator(with_kind, json_schema_input_type=Literal[tuple(METHODS)] | _SECTIONS),
    ]
