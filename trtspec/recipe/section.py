"""Defines the kinds of values that several sections of a recipe have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError

from trtspec.backends import table
from trtspec.base.section import Section
from trtspec.recipe import gpus

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Share = Annotated[int | float, Field(ge=0, le=1, allow_inf_nan=False)]
Amount = Annotated[int | float, Field(ge=0, le=10**9, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]*$")]
GpuName = Annotated[
    str, AfterValidator(gpus.check), WithJsonSchema({"type": "string", "enum": list(gpus.NAMES)})
]
ReasoningParser = Literal["deepseek_r1", "qwen3", "granite", "none"]


@dataclass(frozen=True, slots=True)
class NamesOf:
    """The texts that a JSON Schema offers for a key, which are looked up when one is made."""

    names: Callable[[], Iterable[str]]

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "enum": list(dict.fromkeys(self.names()))}


def _backend(value: object) -> object:
    """Returns the name of a backend; raises pydantic's error of an enumeration for what is none."""
    if value in table.NAMES:
        return value
    allowed = ", ".join(map(repr, table.NAMES))
    raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": allowed})


def _releases() -> Iterator[str]:
    for backend in table.backends():
        yield from backend.versions


BackendName = Annotated[str, BeforeValidator(_backend), NamesOf(lambda: table.NAMES)]
ReleaseName = Annotated[Text, NamesOf(_releases)]


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
