"""Rewrites the paths in a recipe that moves to another folder."""

from __future__ import annotations

import os
from pathlib import Path

from trtspec.recipe.loader import LoadedRecipe


def written(location: Path | str, folder: Path | None) -> str:
    """Returns a model's folder relative to `folder`, or its absolute path if that is None; a Hub id stays as
    it is."""
    if isinstance(location, str):
        return location
    if folder is None:
        return str(location.resolve())
    relative = Path(os.path.relpath(location.resolve(), folder.resolve())).as_posix()
    return relative if relative.startswith("../") else f"./{relative}"


def places(loaded: LoadedRecipe, folder: Path | None) -> dict[str, str]:
    """Returns the keys of a recipe that name files, with how a recipe in `folder` names them."""
    here, found = loaded.path.parent, dict[str, str]()
    for role, location in loaded.locations.items():
        if isinstance(location, Path):
            found[f"{role}.model"] = written(location, folder)
        calibration = loaded.recipe.models[role].quantization.calibration
        if calibration and (here / calibration.dataset).exists():
            found[f"{role}.quantization.calibration.dataset"] = written(here / calibration.dataset, folder)
    return found
