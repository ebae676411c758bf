"""`trtspec init`: a commented recipe to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtspec.errors import TrtspecError
from trtspec.terminal.options import ForceOption
from trtspec.terminal.output import out

EXAMPLES = ("trtspec init", "trtspec init recipes/llama.yaml --force")


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("recipe.yaml"),
    force: ForceOption = False,
) -> None:
    """Write a commented starter recipe."""
    from trtspec.atomic import write_atomically
    from trtspec.recipe.starter import STARTER

    if path.is_dir():
        path = path / "recipe.yaml"
    if path.exists() and not force:
        raise TrtspecError(path, "is there already", f"choose another name, or: trtspec init {path} --force")
    write_atomically(path, STARTER)
    out.status(f"wrote {path}")
    out.hint(f"edit it, then: trtspec check {path}")
