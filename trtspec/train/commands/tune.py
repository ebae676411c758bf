"""`trtspec tune` finds the best draft, method and K for the user's own prompts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trtspec.backends.table import load
from trtspec.base.extras import require
from trtspec.cli.terminal.options import (
    ApiKeyFileOption,
    JsonOption,
    PythonOption,
    RecipeArgument,
    ServedModelOption,
)
from trtspec.cli.terminal.output import out
from trtspec.measure.bench.statistics import FEWEST_PAIRS
from trtspec.measure.workloads.reading import read_workload
from trtspec.recipe.loader import LoadedRecipe
from trtspec.train.tune.candidate import tuned_methods
from trtspec.train.tune.load_race import TURNS, TURNS_OF_STARTS
from trtspec.train.tune.result import TuneResult, as_json, tuned, why

if TYPE_CHECKING:
    from trtspec.measure.bench.result import Interval
    from trtspec.train.tune.race import Run
    from trtspec.train.tune.score import CategoryScore, Score

EXAMPLES = (
    "trtspec tune recipe.yaml --workload prompts.jsonl",
    "trtspec tune recipe.yaml --answers recorded.jsonl --draft Qwen/Qwen2.5-0.5B-Instruct --layers 4",
    "trtspec tune recipe.yaml --workload prompts.jsonl --streams 16 --output recipe.yaml",
    "trtspec tune recipe.yaml --workload prompts.jsonl --schedule --streams 1,4,16,64",
)


_MOST_STREAMS = 1024
_OF_DRAFTS = ("answers", "draft", "layers", "precision", "method", "speed", "prompts")
"""The options that `--schedule` has no use for."""


class Precision(str, Enum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"


TunedMethod = Enum("TunedMethod", {name: name for name in tuned_methods()}, type=str)  # type: ignore[misc]


def _layers(written: list[str] | None) -> list[str] | None:
    for layers in written or ():
        if not all(number.isdecimal() for number in layers.split(",")) or layers == "0":
            raise typer.BadParameter(f"{layers}: write how many, as 4, or which, as 0,1,31")
    return written


@dataclass(frozen=True, slots=True)
class TuneCommandOptions:
    """The options of `trtspec tune`."""

    recipe: RecipeArgument
    workload: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The prompts that the target answers here: a file, or synthetic:…"),
    ] = None
    answers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Use these recorded answers of the target.")
    ] = None
    draft: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Try this draft: a folder or a Hub id; may be repeated."),
    ] = None
    layers: Annotated[
        list[str] | None,
        typer.Option(
            callback=_layers,
            metavar="N",
            help="Try a draft of N layers of the target, or of these layers: 0,1,31; may be repeated.",
        ),
    ] = None
    precision: Annotated[
        list[Precision] | None, typer.Option(help="Try each draft in this precision; may be repeated.")
    ] = None
    method: Annotated[
        list[TunedMethod] | None,
        typer.Option(help="Try this method; may be repeated. All are tried if left out."),
    ] = None
    longest: Annotated[
        int | None, typer.Option(min=1, max=64, help="The largest K.", show_default="the recipe's, or 8")
    ] = None
    streams: Annotated[
        str,
        typer.Option(
            metavar="N,N",
            help="Tune for this many requests at once: 1 for latency, more for goodput. With --schedule, "
            "measure each of these numbers.",
        ),
    ] = "1"
    schedule: Annotated[
        bool,
        typer.Option(
            "--schedule",
            help="Measure K by the number of requests on a server, and write speculation.schedule.",
        ),
    ] = False
    url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[K=]URL",
            help="With --schedule: a running server that takes K from requests, as trtspec's; or one of each "
            "K, 0=URL for no drafts; schedule=URL for the recipe's schedule. May be repeated.",
            show_default="started by the recipe",
        ),
    ] = None
    turns: Annotated[
        int | None,
        typer.Option(
            min=FEWEST_PAIRS,
            help="With --schedule: measure each K in at most this many turns.",
            show_default=f"{TURNS}, or {TURNS_OF_STARTS} where each K is a start",
        ),
    ] = None
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --schedule: draw the gains into this .svg, .png or .pdf."),
    ] = None
    model_name: ServedModelOption = None
    api_key_file: ApiKeyFileOption = None
    python: PythonOption = None
    speed: Annotated[
        Literal["measured", "plan"] | None,
        typer.Option(
            help="Take the time of a round from this machine, or from the plan for the recipe's GPUs.",
            show_default="measured with the torch backend",
        ),
    ] = None
    prompts: Annotated[int, typer.Option(min=2, help="Use at most this many prompts or answers.")] = 64
    max_tokens: Annotated[int, typer.Option(min=16, help="The most tokens of an answer of the target.")] = 128
    temperature: Annotated[
        float,
        typer.Option(
            min=0, help="Sample the target's answers at this temperature; 0 takes the likeliest token."
        ),
    ] = 0.0
    chat: Annotated[bool, typer.Option("--chat", help="Wrap prompts in the model's chat template.")] = False
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the tuned recipe here; RECIPE.tuned.yaml if left out."),
    ] = None
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the measurements in this folder; build/<name>.tune if left out."
        ),
    ] = None
    json: JsonOption = False


def tune(options: TuneCommandOptions) -> None:
    """Find the best draft, method and K for a recipe."""
    streams = _streams(options)
    if options.schedule:
        given_too = [
            f"--{field.name}"
            for field in fields(options)
            if field.name in _OF_DRAFTS and getattr(options, field.name) != field.default
        ]
        if given_too:
            raise typer.BadParameter(f"{', '.join(given_too)}: not with --schedule, which tries K alone")
        # It imports what serves and asks servers, which tuning does not need.
        from trtspec.train.commands.tune_schedule import ScheduleRequest, tune_schedule

        given: dict[str, Any] = {
            field.name: getattr(options, field.name, None) for field in fields(ScheduleRequest)
        }
        tune_schedule(ScheduleRequest(**{**given, "streams": streams, "urls": options.url or ()}))
        return
    if options.url or options.turns or options.picture:
        raise typer.BadParameter("--url, --turns and --picture go with --schedule")
    require("trtspec tune", "torch")
    if (options.workload is None) == (options.answers is None):
        raise typer.BadParameter("give one of --workload and --answers")
    loaded = load(options.recipe)
    found = _measure(options, loaded, *streams)
    beside = options.recipe.with_name(f"{options.recipe.stem}.tuned{options.recipe.suffix}")
    _tell(found, loaded, options.output or beside, json=options.json)


def _streams(options: TuneCommandOptions) -> tuple[int, ...]:
    """Returns the numbers of requests in rising order; several are for a schedule alone."""
    words = options.streams.split(",")
    if not all(word.isdecimal() and 1 <= int(word) <= _MOST_STREAMS for word in words):
        problem = f"whole numbers from 1 to {_MOST_STREAMS} with commas between them, not {options.streams!r}"
        raise typer.BadParameter(problem, param_hint="--streams")
    found = tuple(sorted(set(map(int, words))))
    if len(found) > 1 and not options.schedule:
        raise typer.BadParameter("several numbers go with --schedule", param_hint="--streams")
    return found


def _measure(options: TuneCommandOptions, loaded: LoadedRecipe, streams: int) -> TuneResult:
    """Tries the candidates of the options on answers of the target, and keeps the measurements for the next
    call."""
    # It imports PyTorch, which the command's help does not need.
    from trtspec.train.tune.session import Session, TuneOptions

    folder = options.work or Path("build") / f"{loaded.recipe.name}.tune"
    wanted = TuneOptions(
        drafts=tuple(options.draft or ()),
        layers=tuple(options.layers or ()),
        precisions=tuple(one.value for one in options.precision or ()),
        methods=tuple(one.value for one in options.method or ()),
        longest=options.longest,
        streams=streams,
        is_measured=None if options.speed is None else options.speed == "measured",
    )
    try:
        session = Session(loaded, wanted, folder, out.watch, partial(out.progress, unit="done"))
        if options.answers is not None:
            answers = session.recorded(options.answers, options.prompts, chat=options.chat)
        else:
            prompts = read_workload(str(options.workload)).prompts[: options.prompts]
            answers = session.asked(prompts, options.max_tokens, options.temperature, chat=options.chat)
        return session.tune(answers)
    except KeyboardInterrupt:
        out.hint(f"the measurements are kept in {folder}: the same command continues from there")
        raise


def _tell(found: TuneResult, loaded: LoadedRecipe, output: Path, *, json: bool) -> None:
    """Writes the tuned recipe, if there is a better one, and prints the results."""
    written = tuned(found, loaded, output)
    out.show(TunedRecipe(found, written), as_json=json)


@dataclass(frozen=True, slots=True)
class TunedRecipe:
    """The result of a tuning; `written` is the new recipe, None if the target alone is fastest."""

    found: TuneResult
    written: Path | None

    def tell(self) -> None:
        """Prints the best candidate, why others lost, the best K, and the categories with low acceptance."""
        speed = (
            "rounds timed on this machine"
            if self.found.is_measured
            else "times of rounds from the plan for the GPUs"
        )
        at_once = f"{self.found.streams} texts at once" if self.found.streams > 1 else "one text at a time"
        out.sentence(f"{self.found.answers} answers, {at_once}, {speed}; speed-up over the target alone")
        rows = []
        for standing in self.found.standings:
            cells = _cells(standing.run.best) if standing.run else ("",) * 5
            rows.append((standing.candidate.name, *cells, why(standing, self.found)))
        out.table(rows, header=("candidate", "K", "speed-up", "accepted", "of drafted", "tokens a round", ""))
        out.result()
        if self.found.best and self.found.best.run:
            _print_lengths(self.found.best.candidate.name, self.found.best.run)
        for advice in self.found.advice:
            out.warning(str(advice))
        if self.written is None:
            out.status("the target alone is fastest, so no recipe is written: serve it without drafts")
        else:
            out.status(f"written: {self.written}")
            out.next(shlex.join(["build", str(self.written)]))

    def as_json(self) -> dict[str, Any]:
        return {**as_json(self.found), "recipe": self.written and str(self.written)}


def _cells(score: Score) -> tuple[str, ...]:
    tokens = f"{score.acceptance.tokens_per_round:.2f}"
    return (str(score.length), *_accepted(score), tokens)


def _accepted(score: Score | CategoryScore) -> tuple[str, str, str]:
    accepted = score.acceptance
    return _interval(score.speedup), _percent(accepted.per_token), _percent(accepted.of_drafted)


def _print_lengths(name: str, run: Run) -> None:
    scores = sorted(run.scores, key=lambda score: score.length)
    out.sentence(f"{name} by K; `accepted` is the share of tokens whose predecessors were accepted")
    rows = [(*_cells(score), f"{score.speedup.value / run.costs.plain_s:.0f}") for score in scores]
    out.table(rows, ("K", "speed-up", "accepted", "of drafted", "tokens a round", "tokens/s of a text"))
    out.result()
    if len(run.best.by_category) < 2:
        return
    out.result(f"by category, with K = {run.best.length}")
    found = sorted(run.best.by_category.items())
    by_category = [(category, score.answers, *_accepted(score)) for category, score in found]
    out.table(by_category, ("category", "answers", "speed-up", "accepted", "of drafted"))
    out.result()


def _interval(found: Interval) -> str:
    if found.low <= 0:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
