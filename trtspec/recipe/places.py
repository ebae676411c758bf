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
    recipe, found = loaded.recipe, dict[str, str]()
    files: dict[str, str | None] = {"fleet.workload": recipe.fleet.workload}
    for role, location in loaded.locations.items():
        if isinstance(location, Path):
            found[f"{role}.model"] = written(location, folder)
        model = recipe.models[role]
        calibration, adapter = model.quantization.calibration, model.build.get("lora_dir")
        files[f"{role}.quantization.calibration.dataset"] = calibration.dataset if calibration else None
        files[f"{role}.build.lora_dir"] = str(adapter) if adapter else None
    if recipe.draft:
        files["draft.layer_search.dataset"] = recipe.draft.layer_search.dataset
    for key, file in files.items():
        if file and (place := loaded.path.parent / file).exists():
            found[key] = written(place, folder)
    # A draft of the target's layers has keys of the target, which its own section must not pin.
    return {key: place for key, place in found.items() if key in loaded.lines}
