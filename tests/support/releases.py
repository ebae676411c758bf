"""Which recipes are tried with which releases."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from trtspec.recipe.releases import DEFAULT, RELEASES


def each_release(recipes: Iterable[str | Path]) -> pytest.MarkDecorator:
    """The last recipe with every release and the others with the usual one; with the others in the sweep."""
    names = list(recipes)
    return pytest.mark.parametrize(
        ("recipe", "release"),
        [
            pytest.param(
                recipe,
                release,
                id=f"{Path(recipe).stem}-{release}",
                marks=[] if recipe == names[-1] or release == DEFAULT else pytest.mark.sweep,
            )
            for recipe in names
            for release in RELEASES
        ],
    )
