"""The build of a recipe that a command serves, asks or measures."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.base.errors import UnavailableError

if TYPE_CHECKING:
    from trtspec.deployment.build import DeployedBuild


def find_build(recipe: Path, output: str | None) -> DeployedBuild:
    """Returns the build of a recipe in `output`, or in the usual folder.

    The rules of the backend that it was built for hold, which `build --backend` may have named. Raises
    RecipeError, and UnavailableError where there is no build.
    """
    from trtspec.deployment.build import DeployedBuild
    from trtspec.pipeline.plan.choices import build_folder
    from trtspec.recipe.loader import load, parse

    parsed = parse(recipe)
    found = DeployedBuild(build_folder(parsed, {"output": output}, os.environ), parsed)
    build = replace(found, loaded=load(recipe, found.backend if found.is_current else None))
    if not build.is_there:
        repair = f"trtspec build {recipe}" + (f" --output {output}" if output else "")
        raise UnavailableError(build.folder, "there is no build here", repair)
    return build
