"""Defines how a recipe names the layers of the target that are its draft, or their search."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from trtspec.recipe.section import Positive, Text, TextSelection

AUTO = "auto"
_SKIPPED = 0.45
"""The share of the layers between the first and the last that SWIFT leaves out (its section 5.1)."""


def usual_count(num_layers: int) -> int:
    """Returns how many of the layers are kept by default."""
    return max(num_layers - max(int(_SKIPPED * (num_layers - 2)), 1), 1)


def check(value: object) -> object:
    """Returns `auto` or a list of layers; raises ValueError with problem and repair for what is neither."""
    is_list = isinstance(value, list) and value and all(type(layer) is int and layer >= 0 for layer in value)
    if value != AUTO and not is_list:
        problem = f"found {value!r:.80}; allowed: auto, or the numbers of layers, from 0 on"
        raise ValueError(problem, "write auto, or a list: [0, 1, 5, 9]")
    if isinstance(value, list) and value != sorted(set(value)):
        wanted = ", ".join(map(str, sorted(set(value))))
        raise ValueError("layers are written in their order, each once", f"write [{wanted}]")
    return value


LayersOfTarget = Annotated[
    Literal["auto"] | list[int],
    BeforeValidator(check),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": AUTO},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            ]
        }
    ),
]


class LayerSearch(TextSelection):
    """The options of the search for layers, which compares a draft of them with the target."""

    count: Positive | None = Field(
        default=None,
        description="Number of layers that are kept; if left out, 45 % of the layers between the first and"
        " the last are removed, as in SWIFT.",
    )
    dataset: Text | None = Field(
        default=None,
        description="The texts that the target answers, in the forms of calibration.dataset; if left out, "
        "the target's calibration texts, or else a few of trtspec's own.",
    )
    samples: Positive = Field(default=16, description="The number of texts that the target answers.")
    max_length: Positive = Field(default=256, description="Tokens of each text that are used.")
    max_tokens: Positive = Field(
        default=64, description="Tokens of each answer that drafts are compared with."
    )
    tries: Positive = Field(default=300, description="The largest number of sets of layers that are tried.")
