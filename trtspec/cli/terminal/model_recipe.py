"""The recipe of a model that `trtspec deploy` is given by its name."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from trtspec.backends.recipes import load, loads
from trtspec.base.atomic import write_atomically
from trtspec.base.errors import OptionError, UnavailableError
from trtspec.base.roles import Role
from trtspec.cli.terminal.output import out
from trtspec.methods.table import METHODS
from trtspec.models.download import refused
from trtspec.models.source import has_file
from trtspec.pipeline.machine.devices import find_gpus, product_of
from trtspec.recipe import gpus
from trtspec.recipe.edit import flow
from trtspec.recipe.gpus import NONE
from trtspec.recipe.loader import model_location
from trtspec.recipe.places import written

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FROM_TEXT = "ngram"


@dataclass(frozen=True, slots=True)
class ModelChoices:
    """The options of the command line for a model's recipe; None for those left out."""

    draft: str | None = None
    method: str | None = None
    gpu: str | None = None


def find_model(asked: str) -> Path | str | None:
    """Returns the folder or the Hub id of a model; None for the path of a recipe, there or not.

    Raises `UnavailableError` for anything else.
    """
    path = Path(asked).expanduser()
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        return None
    if has_file(path / "config.json"):
        return Path(os.path.abspath(path))
    if (path / "manifest.json").is_file():
        raise UnavailableError(
            asked, "is a build, which its recipe serves", f"trtspec deploy RECIPE --output {asked}"
        )
    if path.is_dir():
        raise UnavailableError(asked, "is a folder without a model, which has a config.json")
    if _HUB_ID.fullmatch(asked):
        return asked
    problem = "is no recipe or folder, and no model of the Hub, which is OWNER/NAME"
    raise UnavailableError(asked, problem, "trtspec init writes a recipe to start from")


def write_recipe(model: Path | str, choices: ModelChoices) -> Path:
    """Returns the recipe of a model in the current folder, which is written if it is not there yet.

    Raises `UnavailableError` if the file is another model's, RecipeError for choices that no recipe can have,
    and the Hub's error for a model that it does not give. It then writes nothing.
    """
    path, text = Path(f"{_name(model)}.yaml"), recipe_text(model, choices)
    if not path.exists():
        for refusal in refused(loads(text.encode(), path)).values():
            raise refusal
        write_atomically(path, text)
        out.status(f"wrote {path}, the recipe, which may be edited: the same command uses it again")
        return path
    known = load(path)
    if _resolved(known.locations[Role.TARGET]) != _resolved(model):
        raise UnavailableError(path, f"is there already, and is not for {model}", f"trtspec deploy {path}")
    out.status(f"{path} is there already, and is used")
    if path.read_text(encoding="utf-8") != text and choices != ModelChoices():
        out.warning(f"{path} stays as it is: --draft, --method and --gpu are for a new one")
    return path


def recipe_text(model: Path | str, choices: ModelChoices) -> str:
    """Returns the recipe; without a draft or a method the drafts come from the text itself, and the
    GPU is this machine's first one.

    Raises `OptionError` for an unknown method or GPU.
    """
    if choices.method not in (None, *METHODS):
        raise OptionError("method", f"{choices.method!r} is none of {', '.join(METHODS)}")
    if choices.gpu not in (None, *gpus.NAMES):
        raise OptionError("gpu", f"{choices.gpu!r} is none of {', '.join(gpus.NAMES)}")
    here = Path()
    lines = [
        "# Written by trtspec deploy; trtspec plan shows every other key with its default and the reason.",
        "version: 1",
        f"name: {flow(_name(model))}",
        f"target: {{model: {flow(written(model, here))}}}",
    ]
    if choices.draft:
        draft = written(model_location(choices.draft, here), here)
        lines.append(f"draft: {{model: {flow(draft)}}}")
    if method := choices.method or (None if choices.draft else _FROM_TEXT):
        lines.append(f"speculation: {{method: {flow(method)}}}")
    if not (gpu := choices.gpu):
        found = find_gpus()
        gpu = product_of(found[0]).name if found else NONE
    return "\n".join([*lines, f"hardware: {{gpu: {flow(gpu)}}}", ""])


def _resolved(model: Path | str) -> Path | str:
    return model.resolve() if isinstance(model, Path) else model


def _name(model: Path | str) -> str:
    """Returns the name of a recipe for a model."""
    last = str(model).rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9._-]", "-", last).lstrip("._-") or "model"
