"""Defines the kinds of values that several sections of a recipe have."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from trtspec.base.section import Section
from trtspec.recipe import gpus

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Share = Annotated[int | float, Field(ge=0, le=1, allow_inf_nan=False)]
Amount = Annotated[int | float, Field(ge=0, le=10**9, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]*$")]
GpuName = Annotated[
    str, AfterValidator(gpus.check), WithJsonSchema({"type": "string", "enum": list(gpus.NAMES)})
]


class TextSelection(Section):
    """The choice of texts from a dataset, and how they are read."""

    seed: Annotated[int, Field(ge=0)] = Field(default=1234, description="Seed of the choice of texts.")
    text_field: Text = Field(
        default="text",
        description="The key of a JSONL line, or the column, that holds the text, or the messages of a chat.",
    )
    chat_template: bool = Field(
        default=False, description="Wrap each text in the model's chat template first."
    )
