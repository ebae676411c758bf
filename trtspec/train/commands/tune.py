"""`trtspec tune`: which draft, which method and which K are best for one's own prompts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtspec.base.extras import require
from trtspec.cli.terminal.options import JsonOption, RecipeArgument
from trtspec.cli.terminal.output import out

if TYPE_CHECKING:
    from trtspec.base.progress import Advance

EXAMPLES = (
    "trtspec tune recipe.yaml --workload prompts.jsonl",
    "trtspec tune recipe.yaml --answers recorded.jsonl --draft Qwen/Qwen2.5-0.5B-Instruct --layers 4",
    "trtspec tune recipe.yaml --workload prompts.jsonl --streams 16 --output recipe.yaml",
)


class Precision(str, Enum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"


class TunedMethod(str, Enum):
    DRAFT_MODEL = "draft_model"
    NGRAM = "ngram"
    SUFFIX = "suffix"
    HYBRID = "hybrid"


def _layers(written: list[str] | None) -> list[str] | None:
    for layers in written or ():
        if not all(number.isdecimal() for number in layers.split(",")) or layers == "0":
            raise typer.BadParameter(f"{layers}: write how many, as 4, or which, as 0,1,31")
    return written


def tune(
    recipe: RecipeArgument,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload", metavar="NAME", help="Prompts that the target is asked here: a file, or synthetic:…"
        ),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            "--answers", metavar="FILE", help="The target's own answers, as they were recorded before."
        ),
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            "--draft", metavar="MODEL", help="A draft to try: a folder or a Hub id; may be repeated."
        ),
    ] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            "--layers",
            callback=_layers,
            metavar="N",
            help="Try N of the target's layers as a draft, or those numbers: 0,1,31; may be repeated.",
        ),
    ] = None,
    precision: Annotated[
        list[Precision] | None,
        typer.Option("--precision", help="Try each draft in this precision; may be repeated."),
    ] = None,
    method: Annotated[
        list[TunedMethod] | None,
        typer.Option("--method", help="Try this method; may be repeated. All are tried if left out."),
    ] = None,
    longest: Annotated[
        int | None, typer.Option(min=1, max=64, help="The largest K.", show_default="the recipe's, or 8")
    ] = None,
    streams: Annotated[
        int,
        typer.Option(
            min=1, max=1024, help="Texts at once: 1 finds the lowest latency, more the best goodput."
        ),
    ] = 1,
    speed: Annotated[
        Literal["measured", "plan"] | None,
        typer.Option(
            help="Take the time of rounds from this machine, or from the plan of the recipe's GPUs.",
            show_default="measured with the torch backend",
        ),
    ] = None,
    prompts: Annotated[int, typer.Option(min=2, help="The most prompts or answers that are used.")] = 64,
    max_tokens: Annotated[
        int, typer.Option(min=16, help="The longest answer that the target is asked for.")
    ] = 128,
    temperature: Annotated[float, typer.Option(min=0, help="Above 0 the target's answers are drawn.")] = 0.0,
    chat: Annotated[
        bool, typer.Option("--chat", help="Wrap prompts that are text in the model's chat template.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="Where the tuned recipe goes; RECIPE.tuned.yaml if left out."
        ),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            "--work", metavar="DIR", help="Where what was measured is kept; build/<name>.tune if left out."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find the best draft, method and K for a recipe."""
    require("trtspec tune", "torch")
    from trtspec.measure.workloads.reading import read_workload
    from trtspec.recipe.loader import load
    from trtspec.train.commands.tuned import print_outcome
    from trtspec.train.tune.outcome import as_json, tuned
    from trtspec.train.tune.session import Session, TuneOptions

    if (workload is None) == (answers is None):
        raise typer.BadParameter("give one of --workload and --answers")
    loaded = load(recipe)
    place = work or Path("build") / f"{loaded.recipe.name}.tune"
    wanted = TuneOptions(
        drafts=tuple(draft or ()),
        layers=tuple(layers or ()),
        precisions=tuple(one.value for one in precision or ()),
        methods=tuple(one.value for one in method or ()),
        longest=longest,
        streams=streams,
        is_measured=None if speed is None else speed == "measured",
    )
    try:
        session = Session(loaded, wanted, place, out.watch, _count)
        if answers is not None:
            said = session.recorded(answers, prompts, chat=chat)
        else:
            asked = read_workload(str(workload)).prompts[:prompts]
            said = session.asked(asked, max_tokens, temperature, chat=chat)
        found = session.outcome(said)
    except KeyboardInterrupt:
        out.hint(f"what was measured is kept in {place}: the same command goes on from there")
        raise
    written = tuned(found, loaded, output or recipe.with_name(f"{recipe.stem}.tuned{recipe.suffix}"))
    if json:
        out.json({**as_json(found), "recipe": written and str(written)})
    else:
        print_outcome(found, written)
    before, now = loaded.recipe.speculation, written and load(written).recipe.speculation
    if now and now.num_draft_tokens and before.num_draft_tokens is None:
        out.hint("it fixes K; without num_draft_tokens the adaptive policy follows acceptance and load")


@contextmanager
def _count(label: str, total: int | None) -> Iterator[Advance]:
    with out.progress(label, total, "done") as progress:
        yield progress.advance
