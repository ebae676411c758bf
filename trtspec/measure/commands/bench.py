"""`trtspec bench` measures the speed-up that drafts bring to a deployment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from trtspec.base.errors import MeasureError
from trtspec.base.extras import require
from trtspec.base.roles import Role
from trtspec.cli.terminal.options import (
    ApiKeyEnvOption,
    ApiKeyFileOption,
    BaselineApiKeyFileOption,
    BaselineOption,
    JsonOption,
    PythonOption,
    ServedModelOption,
    ServerUrlOption,
    read_key,
    typed,
)
from trtspec.cli.terminal.output import INTERRUPTED, out
from trtspec.deployment.build import find_build
from trtspec.measure.bench.aiperf import AiperfTraffic
from trtspec.measure.bench.deployed import served
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import BenchedModel, BenchResult, OfferedLoad, Targets
from trtspec.measure.bench.session import BenchTargets, run
from trtspec.measure.bench.traffic import OwnTraffic, Traffic
from trtspec.measure.commands.results import Measuring, ShownBench
from trtspec.measure.html.document import write_report
from trtspec.measure.html.page import page
from trtspec.measure.workloads.reading import read_workload
from trtspec.measure.workloads.workload import NAME
from trtspec.recipe import gpus

_STREAMS, _MOST = "1,4,16", 100_000
EXAMPLES = (
    "trtspec bench recipe.yaml --workload questions.jsonl",
    "trtspec bench --url http://host:8000 --workload questions.jsonl --streams 1,4,16,64",
    "trtspec bench --url http://host:9000/v1 --workload synthetic:input=512,output=128 --rate 2,8",
    "trtspec bench --url http://vllm:8000/v1 --baseline http://plain:8000/v1 --workload sharegpt.json",
)


@dataclass(frozen=True, slots=True)
class BenchCommandOptions:
    """The options of `trtspec bench`."""

    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RECIPE]", help="A built recipe; bench serves it while it measures.", show_default=False
        ),
    ] = None
    url: ServerUrlOption = None
    workload: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Prompts: .jsonl, .json, .parquet, .txt; or synthetic:input=512,output=128."
        ),
    ] = "synthetic:input=256,output=128"
    streams: Annotated[
        str | None,
        typer.Option(
            metavar="N,N", help="Measure with these numbers of clients at once.", show_default="1,4,16"
        ),
    ] = None
    rate: Annotated[
        str | None,
        typer.Option(metavar="X,X", help="Measure with these numbers of requests a second, answered or not."),
    ] = None
    burstiness: Annotated[
        float,
        typer.Option(
            min=0,
            max=100,
            help="How requests of a --rate arrive: 0 evenly, 1 at random (Poisson), above 1 in bursts.",
        ),
    ] = 1.0
    pairs: Annotated[
        int, typer.Option(min=6, help="Measure this many pairs of blocks at each load; an even number.")
    ] = 6
    block_prompts: Annotated[
        int | None,
        typer.Option(min=1, help="Prompts in a block.", show_default="3 a stream, or 10 s of the rate"),
    ] = None
    warm_up: Annotated[
        int | None,
        typer.Option(min=0, help="Prompts sent before each load and not counted.", show_default="1 a stream"),
    ] = None
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of an answer.")] = 128
    turns: Annotated[
        int | None, typer.Option(min=1, help="The most turns of a conversation.", show_default="all")
    ] = None
    num_draft_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens drafted in a round with drafts.", show_default="the server's"),
    ] = None
    temperature: Annotated[
        float, typer.Option(min=0, help="Sample at this temperature; 0 takes the likeliest token.")
    ] = 0.0
    seed: Annotated[
        int,
        typer.Option(min=0, help="Repeat the order of prompts, the arrivals and the sampling of this seed."),
    ] = 0
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos", help="Let every answer reach --max-tokens; synthetic prompts always do."
        ),
    ] = False
    completions: Annotated[
        bool,
        typer.Option("--completions", help="Send plain text over OpenAI's API, without a chat template."),
    ] = False
    target_ttft: Annotated[
        float | None,
        typer.Option(min=0, metavar="MS", help="Goodput counts answers whose first token came within this."),
    ] = None
    target_itl: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="MS", help="Goodput counts answers whose mean time between tokens is at most this."
        ),
    ] = None
    target_e2e: Annotated[
        float | None,
        typer.Option(min=0, metavar="MS", help="Goodput counts answers that were whole within this."),
    ] = None
    baseline: BaselineOption = None
    metrics_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The server's metrics, as in host:8002.")
    ] = None
    model_name: ServedModelOption = None
    build: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The recipe's build directory.", show_default="build/<name>"),
    ] = None
    api_key_file: ApiKeyFileOption = None
    api_key_env: ApiKeyEnvOption = None
    baseline_api_key_file: BaselineApiKeyFileOption = None
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that a request may take.")] = 300
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the results into this folder.",
            show_default="bench/<workload>-<time>",
            file_okay=False,
            writable=True,
        ),
    ] = None
    csv: Annotated[bool, typer.Option("--csv", help="Write samples as CSV instead of Parquet.")] = False
    keep_answers: Annotated[
        bool, typer.Option("--keep-answers", help="Write answers.jsonl, which tune and distill read.")
    ] = False
    with_: Annotated[
        Literal["aiperf"] | None,
        typer.Option("--with", help="Let this program send the requests instead of trtspec."),
    ] = None
    tokenizer: Annotated[
        str | None, typer.Option(metavar="DIR", help="The model's tokenizer, which aiperf needs.")
    ] = None
    python: PythonOption = None
    json: JsonOption = False


def bench(options: BenchCommandOptions) -> None:
    """Measure what drafts are worth on a deployment.

    At each load, blocks of the same prompts alternate, with drafts and without. The speed-up has an interval
    of 95 % confidence. Ctrl-C keeps the measurements so far.
    """
    _check_usage(options)
    # The report is written after all measurements.
    require("trtspec bench", "matplotlib")
    plan = _plan(options)
    asked, tokenizer = _targets(options, plan), options.tokenizer
    with ExitStack() as stack:
        if options.recipe is not None:
            serving = _served(options.recipe, options.build, options.python, asked, plan)
            asked, plan, tokenizer_folder = stack.enter_context(serving)
            tokenizer = tokenizer or tokenizer_folder
        traffic: Traffic = OwnTraffic()
        if options.with_ and tokenizer is not None:
            how, timeout_s = plan.burstiness, asked.timeout_s
            traffic = AiperfTraffic(tokenizer, chat=plan.chat, burstiness=how, timeout_s=timeout_s)
        result, files = asyncio.run(run(plan, asked, stack.enter_context(Measuring()), traffic))
    out.show(ShownBench(result), as_json=options.json)
    for note in result.verdict.notes:
        out.warning(note)
    for file in (*files, *_report(result, asked.folder)):
        out.status(f"wrote {file}")
    if result.is_partial:
        out.warning("stopped early: the result has the measurements so far")
        raise typer.Exit(INTERRUPTED)
    if result.is_unanswered:
        raise MeasureError(result.server.url, "every request failed", "the warnings above say why")


def _check_usage(options: BenchCommandOptions) -> None:
    """Refuses options that do not go together."""
    if (options.recipe is None) == (options.url is None):
        raise typer.BadParameter("name a recipe or a --url, one of the two")
    if options.pairs % 2:
        raise typer.BadParameter(
            "an even number, so that each arm begins equally often", param_hint="--pairs"
        )
    if not options.with_:
        return
    if options.tokenizer is None and options.recipe is None:
        raise typer.BadParameter("aiperf needs the model's tokenizer", param_hint="--tokenizer")
    if options.api_key_file or options.api_key_env or options.baseline_api_key_file:
        # AIPerf takes it on its command line alone.
        raise typer.BadParameter(
            "aiperf takes the key on its command line, where every user of this machine would see it"
        )
    if options.keep_answers:
        raise typer.BadParameter("aiperf does not pass answers on", param_hint="--keep-answers")


def _plan(options: BenchCommandOptions) -> BenchPlan:
    """Reads the workload, and returns what is sent."""
    loads = loads_of(options.streams, options.rate)
    workload = read_workload(options.workload, options.seed, options.turns)
    goodput = (options.target_ttft, options.target_itl, options.target_e2e)
    return BenchPlan(
        workload=workload,
        loads=loads,
        paired=False,
        pairs=options.pairs,
        block_prompts=options.block_prompts,
        warm_up=options.warm_up,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        seed=options.seed,
        ignore_eos=options.ignore_eos or workload.name == NAME,
        burstiness=options.burstiness,
        num_draft_tokens=options.num_draft_tokens,
        chat=not options.completions,
        targets=Targets(*(None if ms is None else ms / 1000 for ms in goodput)),
    )


def _targets(options: BenchCommandOptions, plan: BenchPlan) -> BenchTargets:
    """Returns the servers that the options name, and where the results go."""
    default = Path("bench", f"{plan.workload.name}-{datetime.now():%Y%m%d-%H%M%S}")
    return BenchTargets(
        url=options.url or "",
        model_name=options.model_name,
        baseline=options.baseline,
        metrics_url=options.metrics_url,
        timeout_s=options.timeout,
        folder=options.output or default,
        as_csv=options.csv,
        keeps_answers=options.keep_answers,
        key=read_key(options.api_key_file, options.api_key_env),
        baseline_key=read_key(options.baseline_api_key_file),
        command=typed(),
    )


def loads_of(streams: str | None, rate: str | None) -> tuple[OfferedLoad, ...]:
    """Returns the loads of `--streams` or `--rate`; raises `BadParameter`."""
    if streams is not None and rate is not None:
        raise typer.BadParameter("name --streams or --rate, one of the two")
    text, hint = (rate, "--rate") if rate is not None else (streams or _STREAMS, "--streams")
    try:
        values = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise typer.BadParameter(f"numbers with commas between them, not {text!r}", param_hint=hint) from None
    if not all(0 < value < _MOST for value in values):
        raise typer.BadParameter(f"numbers above 0 and below {_MOST}", param_hint=hint)
    if rate is None and not all(value.is_integer() for value in values):
        raise typer.BadParameter("whole numbers", param_hint=hint)
    return tuple(OfferedLoad("rate" if rate is not None else "streams", value) for value in values)


@contextmanager
def _served(
    recipe: Path, folder: str | None, python: Path | None, asked: BenchTargets, plan: BenchPlan
) -> Iterator[tuple[BenchTargets, BenchPlan, str]]:
    """Serves a built recipe; yields its targets and options, and the folder of its tokenizer.

    Another engine's server decodes plainly only if it is started so. On a CPU, whose memory has room for two,
    that is a second server. On a GPU the first server takes all memory.
    """
    build = find_build(recipe, folder)
    if stale := build.staleness:
        out.warning(f"{stale}; bench measures the build as it is")
    models = build.recipe.models
    serve = partial(served, build, chat=plan.chat, python=python, say=out.status)
    with ExitStack() as stack:
        server, baseline = stack.enter_context(serve()), asked.baseline
        if build.is_of_server and baseline is None:
            if build.recipe.hardware.gpu == gpus.NONE:
                baseline = stack.enter_context(serve(plain=True)).url
            else:
                how = f"trtspec deploy {recipe} --plain serves it elsewhere, for --baseline URL"
                out.warning(
                    f"plain decoding is not measured, since the GPU has room for one server only: {how}"
                )
        found = replace(
            asked,
            url=server.url,
            model_name=server.model_name,
            metrics_url=server.metrics_url,
            model=BenchedModel(
                name=server.model_name,
                recipe=build.recipe.name,
                target=models[Role.TARGET].model,
                draft=models[Role.DRAFT].model if Role.DRAFT in models else None,
                num_draft_tokens=build.recipe.speculation.num_draft_tokens,
            ),
            baseline=baseline,
        )
        yield found, replace(plan, chat=server.has_chats), str(build.folder.resolve() / "tokenizer")


def _report(result: BenchResult, folder: Path) -> Iterator[Path]:
    """Writes the report and yields its file, if anything was measured."""
    if result.levels:
        yield write_report(page(result), folder / "report.html")
