"""The names of metrics in expressions of PromQL."""

from __future__ import annotations

import re

_WORDS = re.compile(r"\b(?:trtspec:|nv_)\w+\b")
_QUOTED = re.compile(r'"[^"]*"')


def names(expression: str) -> set[str]:
    """The metrics that an expression reads."""
    return set(_WORDS.findall(_QUOTED.sub("", expression)))
