"""`trtspec distill` trains the recipe's draft, or a head, on the target's own answers."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trtspec.backends.table import load
from trtspec.base.extras import require
from trtspec.base.files import write_atomically
from trtspec.cli.terminal.options import (
    ApiKeyEnvOption,
    ApiKeyFileOption,
    JsonOption,
    RecipeArgument,
    ServedModelOption,
    ServerUrlOption,
    read_key,
)
from trtspec.cli.terminal.output import out
from trtspec.recipe.edit import edit, places, written
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import NOT_OF_HEADS
from trtspec.train.distill.curve import as_line
from trtspec.train.distill.settings import HEAD_TRAINING, DistillationOptions, HeadSettings, TrainingSettings

if TYPE_CHECKING:
    from trtspec.measure.bench.result import Interval
    from trtspec.train.distill.acceptance import AcceptanceEstimate
    from trtspec.train.distill.distillation import Distilled

EXAMPLES = (
    "trtspec distill recipe.yaml --workload prompts.jsonl",
    "trtspec distill recipe.yaml --answers recorded.jsonl --held-out others.jsonl",
    "trtspec distill recipe.yaml --workload prompts.jsonl --url http://host:8000 --recipe-out distilled.yaml",
    "trtspec distill recipe.yaml --workload prompts.jsonl --method eagle3 --draft-vocab-size 32000",
)


@dataclass(frozen=True, slots=True)
class DistillCommandOptions:
    """The options of `trtspec distill`."""

    recipe: RecipeArgument
    method: Annotated[
        Literal["draft_model", "eagle3"],
        typer.Option(help="Train the recipe's draft, or a new head for its target."),
    ] = "draft_model"
    workload: Annotated[
        str | None, typer.Option(metavar="NAME", help="Ask the target the prompts of this file.")
    ] = None
    answers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Learn these recorded answers of the target.")
    ] = None
    held_out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Measure on these prompts or answers; if left out, on a tenth of the others."
        ),
    ] = None
    url: ServerUrlOption = None
    model_name: ServedModelOption = None
    api_key_file: ApiKeyFileOption = None
    api_key_env: ApiKeyEnvOption = None
    streams: Annotated[int, typer.Option(min=1, help="Send this many requests to --url at once.")] = 16
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of an answer.")] = 256
    temperature: Annotated[
        float,
        typer.Option(min=0, help="Sample the answers at this temperature; 0 takes the likeliest token."),
    ] = 0.0
    chat: Annotated[bool, typer.Option("--chat", help="Wrap prompts in the model's chat template.")] = False
    batch_size: Annotated[int, typer.Option(min=1, help="Answers in a step of the training.")] = 8
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Learn each answer this many times; if left out 3, for eagle3 20.",
            show_default=False,
        ),
    ] = None
    learning_rate: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="The rate of the first step; it falls to 0. If left out 2e-5, for eagle3 1e-4.",
            show_default=False,
        ),
    ] = None
    max_length: Annotated[
        int, typer.Option(min=2, help="The largest number of tokens of a prompt and its answer together.")
    ] = 2048
    seed: Annotated[int, typer.Option(min=0, help="The seed of the order of answers.")] = 0
    ttt_steps: Annotated[
        int, typer.Option(min=1, help="eagle3: the number of tokens in a row that it learns to propose.")
    ] = 7
    draft_vocab_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="eagle3: propose only this many tokens, the most frequent ones of the answers."
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write everything into this folder; distilled/<name> if left out."),
    ] = None
    recipe_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the recipe with the new draft into this file.")
    ] = None
    json: JsonOption = False


def distill(options: DistillCommandOptions) -> None:
    """Train the draft, or a head, on the target's own answers."""
    if (options.workload is None) == (options.answers is None):
        raise typer.BadParameter("give one of the two", param_hint="--workload / --answers")
    if options.answers and options.url:
        raise typer.BadParameter("recorded answers are not requested again", param_hint="--url")
    loaded = load(options.recipe)
    require("trtspec distill", "torch", "transformers", "accelerate", "matplotlib", extra="train")
    # It imports PyTorch and transformers, which the command's help does not need.
    from trtspec.train.distill import distillation

    wanted = _wanted(options, loaded)
    recipe_out = options.recipe_out
    changes, new_recipe = _changes(loaded, wanted, options.recipe.parent), ""
    if recipe_out:
        # A recipe that cannot be changed is reported before the training.
        changed = {**places(loaded, recipe_out.parent), **_changes(loaded, wanted, recipe_out.parent)}
        new_recipe = edit(loaded.path.read_text(encoding="utf-8-sig"), changed, loaded.path)
    result = distillation.distill(wanted, out.progress, out.watch)
    if recipe_out:
        write_atomically(recipe_out, new_recipe)
    out.show(ShownDistillation(result, wanted, changes, recipe_out), as_json=options.json)


def _wanted(options: DistillCommandOptions, loaded: LoadedRecipe) -> DistillationOptions:
    """Returns the options of the training; options that are left out have the values of the method's
    authors."""
    # It imports aiohttp; a missing extra `train` is reported before.
    from trtspec.train.distill.settings import TargetDeployment

    key = read_key(options.api_key_file, options.api_key_env)
    head, published = None, TrainingSettings()
    if options.method == "eagle3":
        head, published = (
            HeadSettings(options.method, options.ttt_steps, options.draft_vocab_size),
            HEAD_TRAINING,
        )
    settings = TrainingSettings(
        options.batch_size,
        options.epochs or published.epochs,
        published.learning_rate if options.learning_rate is None else options.learning_rate,
        options.max_length,
        options.seed,
    )
    deployment = None
    if options.url:
        deployment = TargetDeployment(options.url, options.model_name, key, options.streams)
    return DistillationOptions(
        recipe=options.recipe,
        output=options.output or Path("distilled", loaded.recipe.name),
        workload=options.workload,
        answers=options.answers,
        held_out=options.held_out,
        deployment=deployment,
        chat=options.chat,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        settings=settings,
        head=head,
    )


def _changes(loaded: LoadedRecipe, wanted: DistillationOptions, folder: Path) -> dict[str, str | None]:
    """Returns the changes of a recipe in `folder` for the new draft, by dotted keys; None removes a key."""
    changes: dict[str, str | None] = {"draft.model": written(wanted.folder, folder)}
    gone = ["revision"]
    if wanted.head:
        changes["speculation.method"] = wanted.head.method
        gone += NOT_OF_HEADS
    return changes | {f"draft.{key}": None for key in gone if f"draft.{key}" in loaded.lines}


@dataclass(frozen=True, slots=True)
class ShownDistillation:
    """The result of a distillation, and what changes in the recipe."""

    result: Distilled
    wanted: DistillationOptions
    changes: dict[str, str | None]
    recipe_out: Path | None

    def tell(self) -> None:
        self._tell_acceptance()
        self._tell_changes()

    def as_json(self) -> dict[str, Any]:
        # It imports PyTorch and transformers, which the command's help does not need.
        from trtspec.train.distill import distillation

        folders = {"folder": str(self.result.folder), "training": str(self.result.training)}
        found = distillation.as_json(self.result, self.wanted)
        return {"recipe": str(self.wanted.recipe), **folders, **found, "changes": self.changes}

    def _tell_acceptance(self) -> None:
        result = self.result
        learned, held_out = result.answers.learned, result.answers.held_out
        tokens = sum(len(answer.tokens) for answer in learned)
        out.status(f"learned {len(learned)} answers of {tokens} tokens; {len(held_out)} others were held out")
        if left_out := result.answers.left_out:
            out.status(f"left out {left_out}: too long, refused, empty, repeated, or of prompts held out")
        picture = result.training / "loss.svg"
        out.status(f"loss {as_line(result.points)}, {len(result.points)} steps; {picture}")
        if not (self.result.before and self.result.after):
            out.warning("the draft proposes nothing for the held-out answers, so its acceptance is unknown")
            return
        sides = self.result.before, self.result.after
        first, then = (side.acceptance.tokens_per_round for side in sides)
        per_token, of_drafted = (side.per_token for side in sides), (side.of_drafted for side in sides)
        rows = [
            ("a token, if all before it were", *map(_share, per_token), _ratio(self.result.per_token_ratio)),
            (
                f"of all drafted, with K = {self.result.num_draft_tokens}",
                *map(_share, of_drafted),
                _ratio(self.result.of_drafted_ratio),
            ),
            ("by position", *map(_positions, sides), ""),
            ("tokens a round", f"{first:.2f}", f"{then:.2f}", f"x{then / first:.2f}"),
        ]
        out.table(rows, header=("accepted, held out", "before", "after", "change"))

    def _tell_changes(self) -> None:
        ratio = self.result.per_token_ratio
        if ratio and ratio.value <= 1:
            out.warning("acceptance has not risen: keep the draft that the recipe has")
            out.hint(
                "more prompts, more epochs or another --learning-rate may help; a small draft needs 1e-3"
            )
        elif ratio and ratio.low <= 1 and math.isfinite(ratio.value):
            out.warning("the rise may be chance: hold out more prompts to know")
        loaded = self.result.pair.loaded
        if self.recipe_out:
            out.status(f"{self.recipe_out} names the new draft")
        else:
            for key, value in self.changes.items():
                line = loaded.lines.get(key)
                said = f"remove {key}" if value is None else f"{key}: {value}"
                out.hint(f"in {loaded.path}{f', line {line}' if line else ''}: {said}")
        out.result(str(self.result.folder))
        if self.recipe_out and not (ratio and ratio.value <= 1):
            out.next(shlex.join(["build", str(self.recipe_out)]))


def _share(estimate: Interval) -> str:
    return f"{100 * estimate.value:.1f} % ({100 * estimate.low:.1f} to {100 * min(estimate.high, 1):.1f})"


def _ratio(estimate: Interval | None) -> str:
    if estimate is None or math.isinf(estimate.value):
        return ""
    return f"x{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def _positions(measured: AcceptanceEstimate) -> str:
    shares = measured.acceptance.by_position
    return " ".join("-" if share is None else f"{100 * share:.0f}" for share in shares) + " %"
