"""The chart's `values.yaml`: an example's values, each with what it is for."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from charts.writer.example import EXAMPLE
from trtspec.kubernetes.helm import chart_values, key_of
from trtspec.kubernetes.manifests import dump

_HEAD = """\
# An example, Llama 3.1 8B on H100s. The values of a recipe, of which another file may change any:
#   trtspec deploy recipe.yaml --kubernetes --store URL --helm-values > values.yaml
#   helm install llama charts/trtspec --values values.yaml --values ours.yaml
# Written by `make chart`.

"""


def defaults() -> str:
    """Returns the file."""
    return _HEAD + "\n".join(_lines(EXAMPLE, chart_values(EXAMPLE), 0)) + "\n"


def _lines(part: BaseModel, content: dict[str, Any], indent: int) -> Iterator[str]:
    pad = " " * indent
    for name, field in type(part).model_fields.items():
        key = key_of(name)
        if key not in content:
            continue
        if field.description:
            yield from textwrap.wrap(
                field.description, 100, initial_indent=f"{pad}# ", subsequent_indent=f"{pad}# "
            )
        inner = getattr(part, name)
        if inner is None:
            yield from _without(field.annotation, pad)
        if isinstance(inner, BaseModel):
            yield f"{pad}{key}:"
            yield from _lines(inner, content[key], indent + 2)
        else:
            yield textwrap.indent(dump({key: content[key]}).rstrip("\n"), pad)


def _without(kind: Any, pad: str) -> Iterator[str]:
    """Yields the keys of a section that the example does without."""
    for one in get_args(kind):
        if isinstance(one, type) and issubclass(one, BaseModel):
            for name, field in one.model_fields.items():
                yield f"{pad}#   {key_of(name)}: {field.description}"
