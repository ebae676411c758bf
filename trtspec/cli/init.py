"""`trtspec init`: a commented recipe to start from, or a recipe made from a server's command."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.base.errors import TrtspecError
from trtspec.base.files import write_atomically
from trtspec.cli.terminal.options import BackendOption, ForceOption
from trtspec.cli.terminal.output import out
from trtspec.recipe.gpus import GPUS, NONE
from trtspec.recipe.shipped import STARTER, shipped

if TYPE_CHECKING:
    from trtspec.recipe.migration.command import OwnFlags
    from trtspec.recipe.migration.tool import MigrationTool

EXAMPLES = (
    "trtspec init",
    "trtspec init --recipe llama-3.1-8b-h100    # one that trtspec ships",
    "trtspec init recipes/llama.yaml --force",
    "trtspec init --from 'vllm serve Qwen/Qwen3-32B --spec-model Qwen/Qwen3-0.6B --spec-tokens 4'",
    "trtspec init --from start.sh --gpu h200",
    "trtspec init --from docker-compose.yaml --container llm",
)


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("recipe.yaml"),
    command: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="COMMAND|FILE",
            help="Make it from a command of vLLM, SGLang, trtllm-build or trtllm-serve, a script, a Compose "
            "file or Kubernetes manifests; - reads stdin.",
        ),
    ] = None,
    container: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --from: the container, or Compose's service.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", metavar="NAME", help="Copy this recipe, which trtspec ships.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="GPU", help="With --from: the GPU, h100 if left out.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="MODEL", help="With --from: the draft, if the command names none.")
    ] = None,
    backend: BackendOption = None,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="With --from: write a recipe even if it loses the drafts.")
    ] = False,
    force: ForceOption = False,
) -> None:
    """Write a commented recipe to start from.

    With --from, init reads a command and never runs it. Where vLLM or SGLang is installed, init asks it for
    its flags. It names each flag that no recipe key stands for. If that would lose the command's drafts, it
    writes nothing and ends with status 1.
    """
    if path.is_dir():
        path = path / "recipe.yaml"
    if path.suffix not in (".yaml", ".yml"):
        repair = f"trtspec init {path.name}.yaml; a model is served by: trtspec deploy {path}"
        raise TrtspecError(path, "is not the name of a recipe, which ends in .yaml", repair)
    if path.exists() and not force:
        raise TrtspecError(path, "is there already", f"choose another name, or: trtspec init {path} --force")
    if command and recipe:
        raise typer.BadParameter("give --from or --recipe, not both", param_hint="--recipe")
    asked = {"gpu": gpu, "draft": draft, "backend": backend, "container": container}
    for option, value in (asked | {"allow-loss": allow_loss}).items():
        if value and command is None:
            raise typer.BadParameter("goes with --from", param_hint=f"--{option}")
    if gpu and gpu not in (*GPUS, NONE):
        raise typer.BadParameter(f"known are {', '.join(GPUS)}, {NONE}", param_hint="--gpu")
    text = shipped(recipe).read_text(encoding="utf-8") if recipe else STARTER
    if command is not None:
        text = _read(command, path, asked, allow_loss=allow_loss)
    write_atomically(path, text)
    out.status(f"wrote {path}")
    out.next(f"check {path}")


def _read(command: str, path: Path, asked: Mapping[str, str | None], *, allow_loss: bool) -> str:
    """Returns the recipe of a command, and prints what it did with the flags.

    Raises TrtspecError for one that has less speculation than the command, unless that is allowed.
    """
    from trtspec.backends.importing import recipe_of

    text = sys.stdin.read() if command == "-" else command
    if command != "-" and os.path.exists(command):  # Path.exists raises an error for a long command.
        try:
            text = Path(command).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TrtspecError(command, f"cannot be read: {error}", "name a script or a manifest") from None
    found = recipe_of(text, path, **asked, ask=_own_flags)
    for told in found.notes:
        out.status(f"{told.subject}: {told.fate}")
    if found.missing and not allow_loss:
        missing = found.missing[0]
        repair = "the same with --allow-loss writes the rest"
        problem = f"would not be in the recipe: {missing.fate.removeprefix('left out: ')}"
        raise TrtspecError(missing.subject, problem, repair)
    return found.text


def _own_flags(tool: MigrationTool) -> OwnFlags:
    """Returns the flags of a tool's own parser if the tool is installed, and none otherwise."""
    from trtspec.backends.table import backend_named
    from trtspec.pipeline.machine.host import flags_of, python_of

    server = tool.own_parser
    python = python_of(server, backend_named(tool.backend).packages) if server else None
    if server is None or python is None:
        return {}
    with out.progress(f"ask {tool.name} for its flags"):
        flags = flags_of(python, server)
    if not flags:
        out.status(f"{tool.name} did not list its flags, so trtspec uses its own list")
    return flags
