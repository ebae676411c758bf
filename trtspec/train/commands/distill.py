"""`trtspec distill`: the recipe's draft, or a head, trained on its target's own answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtspec.base.extras import require
from trtspec.cli.terminal.api_key import read_key
from trtspec.cli.terminal.options import JsonOption, RecipeArgument
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.server_options import (
    ApiKeyEnvOption,
    ApiKeyFileOption,
    ServedModelOption,
    ServerUrlOption,
)

if TYPE_CHECKING:
    from trtspec.base.progress import Advance
    from trtspec.recipe.loader import LoadedRecipe
    from trtspec.train.distill.acceptance import AcceptanceEstimate
    from trtspec.train.distill.distillation import Distilled
    from trtspec.train.distill.wanted import DistillationOptions
    from trtspec.train.tune.estimate import IntervalEstimate

EXAMPLES = (
    "trtspec distill recipe.yaml --workload prompts.jsonl",
    "trtspec distill recipe.yaml --answers recorded.jsonl --held-out others.jsonl",
    "trtspec distill recipe.yaml --workload prompts.jsonl --url http://host:8000 --recipe-out distilled.yaml",
    "trtspec distill recipe.yaml --workload prompts.jsonl --method eagle3 --draft-vocab-size 32000",
)


def distill(
    recipe: RecipeArgument,
    method: Annotated[
        Literal["draft_model", "eagle3", "medusa"],
        typer.Option("--method", help="What is trained: the recipe's draft, or a new head for its target."),
    ] = "draft_model",
    workload: Annotated[
        str | None,
        typer.Option("--workload", metavar="NAME", help="Prompts that the target is asked now: a file."),
    ] = None,
    answers: Annotated[
        Path | None, typer.Option("--answers", metavar="FILE", help="Answers of the target, as recorded.")
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            "--held-out",
            metavar="FILE",
            help="More prompts, or answers, to measure on; a tenth of the others if left out.",
        ),
    ] = None,
    url: ServerUrlOption = None,
    model_name: ServedModelOption = None,
    api_key_file: ApiKeyFileOption = None,
    api_key_env: ApiKeyEnvOption = None,
    streams: Annotated[int, typer.Option(min=1, help="Requests to that URL at a time.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="Temperature of the answers; 0 is greedy.")] = 0.0,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap prompts in the model's chat template.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Answers a step of the training.")] = 8,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How often each answer is learned; 3, 20 for eagle3, 2 for medusa.",
            show_default=False,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Rate of the first step, from which it falls to 0; 2e-5, 1e-4 for eagle3, 1e-3 for medusa.",
            show_default=False,
        ),
    ] = None,
    max_length: Annotated[
        int, typer.Option(min=2, help="Longest prompt and answer to learn, in tokens.")
    ] = 2048,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of the answers.")] = 0,
    ttt_steps: Annotated[
        int, typer.Option(min=1, help="eagle3: how many tokens it learns to propose one after the other.")
    ] = 7,
    draft_vocab_size: Annotated[
        int | None,
        typer.Option(min=1, help="eagle3: say only so many tokens, the answers' most frequent ones."),
    ] = None,
    medusa_heads: Annotated[int, typer.Option(min=1, help="medusa: how many tokens it proposes.")] = 3,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Where everything goes; distilled/<name>.")
    ] = None,
    recipe_out: Annotated[
        Path | None,
        typer.Option(
            "--recipe-out", metavar="FILE", help="Write the recipe with the new draft, beside RECIPE."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train the draft, or a head, on the target's own answers."""
    from trtspec.recipe.loader import load

    if (workload is None) == (answers is None):
        raise typer.BadParameter("give either of them", param_hint="--workload / --answers")
    if answers and url:
        raise typer.BadParameter("recorded answers are not asked for again", param_hint="--url")
    loaded = load(recipe)
    folder = output or Path("distilled", loaded.recipe.name)
    require("trtspec distill", "torch", "transformers", "accelerate", extra="train")
    from trtspec.base.atomic import write_atomically
    from trtspec.train.distill.deployment import TargetDeployment
    from trtspec.train.distill.distillation import as_json
    from trtspec.train.distill.distillation import distill as run
    from trtspec.train.distill.heads.settings import PUBLISHED, HeadSettings
    from trtspec.train.distill.settings import TrainingSettings
    from trtspec.train.distill.wanted import DistillationOptions

    key = read_key(api_key_file, api_key_env)
    head = (
        None if method == "draft_model" else HeadSettings(method, ttt_steps, draft_vocab_size, medusa_heads)
    )
    published = PUBLISHED[head.method] if head else TrainingSettings()
    wanted = DistillationOptions(
        recipe=recipe,
        output=folder,
        workload=workload,
        answers=answers,
        held_out=held_out,
        deployment=TargetDeployment(url, model_name, key, streams) if url else None,
        chat=chat,
        max_tokens=max_tokens,
        temperature=temperature,
        settings=TrainingSettings(
            batch_size,
            epochs or published.epochs,
            published.learning_rate if learning_rate is None else learning_rate,
            max_length,
            seed,
        ),
        head=head,
    )
    changes = _changes(loaded, wanted, recipe.parent)
    new_recipe = _edited(loaded, wanted, recipe_out.parent) if recipe_out else ""
    result = run(wanted, _show, out.watch)
    if recipe_out:
        write_atomically(recipe_out, new_recipe)
    if json:
        folders = {"folder": str(result.folder), "training": str(result.training)}
        out.json({"recipe": str(recipe), **folders, **as_json(result, wanted), "changes": changes})
        return
    _print(result)
    _advise(result, changes, recipe_out)


@contextmanager
def _show(label: str, total: int, unit: str) -> Iterator[Advance]:
    with out.progress(label, total, unit) as progress:
        yield progress.advance


def _changes(loaded: LoadedRecipe, wanted: DistillationOptions, folder: Path) -> dict[str, str | None]:
    """Returns what a recipe in `folder` must say of the new draft, by dotted keys; None removes a key."""
    from trtspec.recipe.places import written
    from trtspec.recipe.schema import NOT_OF_HEADS

    changes: dict[str, str | None] = {"draft.model": written(wanted.folder, folder)}
    gone = ["revision"]
    if wanted.head:
        changes["speculation.method"] = wanted.head.method
        gone += NOT_OF_HEADS
    return changes | {f"draft.{key}": None for key in gone if f"draft.{key}" in loaded.lines}


def _edited(loaded: LoadedRecipe, wanted: DistillationOptions, folder: Path) -> str:
    """Returns the recipe with the new draft, for `folder`; raises RecipeError where it cannot be changed."""
    from trtspec.recipe.edit import edit
    from trtspec.recipe.places import places

    changes = {**places(loaded, folder), **_changes(loaded, wanted, folder)}
    return edit(loaded.path.read_text(encoding="utf-8-sig"), changes, loaded.path)


def _print(result: Distilled) -> None:
    from trtspec.train.distill.curve import as_line

    learned, kept = result.answers.learned, result.answers.held_out
    tokens = sum(len(answer.tokens) for answer in learned)
    out.status(f"learned {len(learned)} answers of {tokens} tokens; {len(kept)} others were held out")
    if result.answers.left_out:
        out.status(
            f"left out {result.answers.left_out}: too long, empty, repeated, or held out by their prompts"
        )
    out.status(f"loss {as_line(result.points)}, {len(result.points)} steps; {result.training / 'loss.svg'}")
    if not (result.before and result.after):
        out.warning("a draft says nothing on the held-out answers, so that its acceptance is not known")
        return
    before, after, length = result.before, result.after, result.num_draft_tokens
    rows = [
        (
            "a token, if all before it were",
            _share(before.per_token),
            _share(after.per_token),
            _ratio(result.per_token_ratio),
        ),
        (
            f"of all drafted, with K = {length}",
            _share(before.of_drafted),
            _share(after.of_drafted),
            _ratio(result.of_drafted_ratio),
        ),
        ("by position", _positions(before), _positions(after), ""),
        (
            "tokens a round",
            f"{before.acceptance.tokens_per_round:.2f}",
            f"{after.acceptance.tokens_per_round:.2f}",
            f"x{after.acceptance.tokens_per_round / before.acceptance.tokens_per_round:.2f}",
        ),
    ]
    out.table(rows, header=("accepted, held out", "before", "after", "change"))


def _advise(result: Distilled, changes: dict[str, str | None], recipe_out: Path | None) -> None:
    ratio = result.per_token_ratio
    if ratio and ratio.value <= 1:
        out.warning("acceptance has not risen: keep the draft that the recipe has")
        out.hint("more prompts, more epochs or another --learning-rate may help; a small draft wants 1e-3")
    elif ratio and ratio.low <= 1 and math.isfinite(ratio.value):
        out.warning("the rise may be chance: hold out more prompts to know")
    loaded = result.pair.loaded
    if recipe_out:
        out.status(f"{recipe_out} names the new draft")
    else:
        for key, value in changes.items():
            line = loaded.lines.get(key)
            said = f"remove {key}" if value is None else f"{key}: {value}"
            out.hint(f"in {loaded.path}{f', line {line}' if line else ''}: {said}")
    out.result(str(result.folder))


def _share(estimate: IntervalEstimate) -> str:
    return f"{100 * estimate.value:.1f} % ({100 * estimate.low:.1f} to {100 * min(estimate.high, 1):.1f})"


def _ratio(estimate: IntervalEstimate | None) -> str:
    if estimate is None or math.isinf(estimate.value):
        return ""
    return f"x{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def _positions(measured: AcceptanceEstimate) -> str:
    shares = measured.acceptance.by_position
    return " ".join("-" if share is None else f"{100 * share:.0f}" for share in shares) + " %"
