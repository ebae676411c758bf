"""Which backend runs which method, and why another does not: one table, a row for each method.

`limits.py` refuses by it before anything is downloaded, and the README's table is tested to be this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ENGINES = ("tensorrt_llm", "torch")
"""The backends whose engines trtspec builds and coordinates itself."""

BACKENDS = ENGINES


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a backend does not run a method, and where that is written down or can be seen."""

    reason: str
    source: str


Cell = Refusal | None
"""None where it runs."""

SUPPORT: Mapping[str, Mapping[str, Cell]] = {
    "draft_model": {"tensorrt_llm": None, "torch": None},
    "ngram": {"tensorrt_llm": None, "torch": None},
    "hybrid": {"tensorrt_llm": None, "torch": None},
}
"""By the name of a method, and then by that of a backend."""


def refusal(method: str, backend: str) -> Refusal | None:
    """Returns why the backend does not run the method; None where it does."""
    return SUPPORT[method][backend]
