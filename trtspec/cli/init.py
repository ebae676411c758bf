"""`trtspec init`: a commented recipe to start from."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from trtspec.cli.options import ForceOption
from trtspec.cli.output import out
from trtspec.errors import TrtspecError

EXAMPLES = ("trtspec init", "trtspec init recipes/llama.yaml --force")


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("recipe.yaml"),
    force: ForceOption = False,
) -> None:
    """Write a commented starter recipe."""
    from trtspec.recipe.starter import STARTER

    if path.is_dir():
        path = path / "recipe.yaml"
    if path.exists() and not force:
        raise TrtspecError(path, "is there already", f"choose another name, or: trtspec init {path} --force")
    _write(path, STARTER)
    out.status(f"wrote {path}")
    out.hint(f"edit it, then: trtspec check {path}")


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a sibling that takes the name when it is complete."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
