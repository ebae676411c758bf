"""`trtspec migrate`: the same recipe for another backend."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.backends.moving import move
from trtspec.backends.table import load
from trtspec.base.errors import TrtspecError
from trtspec.base.files import write_atomically
from trtspec.cli.terminal.options import AnyBackend, ForceOption, JsonOption, RecipeArgument
from trtspec.cli.terminal.output import out
from trtspec.recipe.edit import flow

if TYPE_CHECKING:
    from trtspec.backends.moving import MovedRecipe

EXAMPLES = (
    "trtspec migrate recipe.yaml --to vllm",
    "trtspec migrate recipe.yaml --to tensorrt_llm_pytorch --output recipes/trtllm-serve.yaml",
)


def migrate(
    recipe: RecipeArgument,
    to: Annotated[
        AnyBackend, typer.Option("--to", help="The backend that is to serve the pair.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Write the new recipe into this file.",
            show_default="beside it: RECIPE-BACKEND",
        ),
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Move a recipe to another engine, and say what changes.

    Comments and order stay. Migrate removes each key that the other engine lacks, and gives the reason. The
    last lines are the commands that build both and prove that one may replace the other.
    """
    loaded = load(recipe)
    if loaded.recipe.backend == to:
        raise TrtspecError(recipe, f"is a recipe of {to} already", "name another backend: --to")
    path = output or recipe.with_name(f"{recipe.stem}-{to}{recipe.suffix}")
    if path.exists() and not force:
        repair = f"choose another: trtspec migrate {recipe} --to {to} --output FILE, or --force"
        raise TrtspecError(path, "is there already", repair)
    moved = move(recipe.read_text(encoding="utf-8-sig"), loaded, to, path)
    write_atomically(path, moved.text)
    proof = _proof(recipe, path)
    out.show(WrittenMigration(path, moved, proof), as_json=json)


@dataclass(frozen=True, slots=True)
class WrittenMigration:
    """The new recipe, its changes, and the commands that measure both recipes."""

    path: Path
    moved: MovedRecipe
    proof: list[str]

    def tell(self) -> None:
        for change in self.moved.changes:
            values = f"{_shown(change.before)} -> {_shown(change.after)}"
            if change.before == change.after:
                values = _shown(change.before)
            out.result(f"{change.key}: {values}; {change.reason}")
        out.status(f"wrote {self.path}; this compares both, in their texts and their speed:")
        for command in self.proof:
            out.result(command)
        out.next(shlex.join(["check", str(self.path)]))

    def as_json(self) -> dict[str, Any]:
        changes = [asdict(change) for change in self.moved.changes]
        return {"recipe": str(self.path), "changes": changes, "proof": self.proof}


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else flow(value)


def _proof(before: Path, after: Path) -> list[str]:
    """Returns the commands that build both and compare them."""
    builds = [shlex.join(["trtspec", "build", str(path)]) for path in (before, after)]
    return [*builds, shlex.join(["trtspec", "prove", str(before), str(after)])]
