"""Defines the kinds of values that several sections of a recipe have."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from trtspec.base.section import Section
from trtspec.recipe import gpus
from trtspec.recipe.backends import NAMES

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Share = Annotated[int | float, Field(ge=0, le=1, allow_inf_nan=False)]
Amount = Annotated[int | float, Field(ge=0, le=10**9, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]*$")]
GpuName = Annotated[
    str, AfterValidator(gpus.check), WithJsonSchema({"type": "string", "enum": list(gpus.NAMES)})
]
ReasoningParser = Literal["deepseek_r1", "qwen3", "granite", "none"]


def _backend(value: object) -> object:
    """Returns the name of a backend; raises pydantic's error of an enumeration for what is none."""
    if value in NAMES:
        return value
    allowed = ", ".join(map(repr, NAMES))
    raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": allowed})


BackendName = Annotated[
    str, BeforeValidator(_backend), WithJsonSchema({"type": "string", "enum": list(NAMES)})
]


class TextSelection(Section):
    """The choice of texts from a dataset, and how they are read."""

    seed: Annotated[int, Field(ge=0)] = Field(default=1234, description="Seed for choosing the texts.")
    text_field: Text = Field(
        default="text",
        description="The key of a JSONL line, or the column, that holds the text, or the messages of a chat.",
    )
    chat_template: bool = Field(
        default=False, description="Wrap each text in the model's chat template first."
    )
