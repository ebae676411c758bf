"""`trtspec bench`: what drafts are worth on a deployment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtspec.base.errors import MeasureError
from trtspec.cli.terminal.api_key import read_key
from trtspec.cli.terminal.command_line import typed
from trtspec.cli.terminal.options import JsonOption, PythonOption
from trtspec.cli.terminal.output import INTERRUPTED, out
from trtspec.cli.terminal.server_options import (
    ApiKeyEnvOption,
    ApiKeyFileOption,
    BaselineApiKeyFileOption,
    BaselineOption,
    ServedModelOption,
    ServerUrlOption,
)

if TYPE_CHECKING:
    from trtspec.measure.bench.plan import BenchPlan
    from trtspec.measure.bench.result import BenchResult, OfferedLoad
    from trtspec.measure.bench.session import BenchTargets
    from trtspec.measure.bench.traffic import Traffic

_STREAMS, _MOST = "1,4,16", 100_000
EXAMPLES = (
    "trtspec bench recipe.yaml --workload questions.jsonl",
    "trtspec bench --url http://host:8000 --workload questions.jsonl --streams 1,4,16,64",
    "trtspec bench --url http://host:9000/v1 --workload synthetic:input=512,output=128 --rate 2,8",
    "trtspec bench --url http://vllm:8000/v1 --baseline http://plain:8000/v1 --workload sharegpt.json",
    "trtspec bench compare bench/monday bench/tuesday",
)


def bench(
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="[RECIPE]", help="A built recipe, served meanwhile.", show_default=False),
    ] = None,
    url: ServerUrlOption = None,
    workload: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Prompts: .jsonl, .json, .parquet, .txt; or synthetic:input=512,output=128."
        ),
    ] = "synthetic:input=256,output=128",
    streams: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Loads: so many clients at once.", show_default="1,4,16"),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="X,X", help="Loads: so many requests a second, come what may.")
    ] = None,
    burstiness: Annotated[
        float, typer.Option(min=0, max=100, help="Of a rate: 1 is Poisson, 0 a clock, more is bursts.")
    ] = 1.0,
    pairs: Annotated[int, typer.Option(min=6, help="Pairs of blocks of each load; an even number.")] = 6,
    block_prompts: Annotated[
        int | None,
        typer.Option(min=1, help="Prompts of a block.", show_default="3 a stream, or 10 s of the rate"),
    ] = None,
    warm_up: Annotated[
        int | None,
        typer.Option(min=0, help="Prompts before each load, not counted.", show_default="1 a stream"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of an answer.")] = 128,
    turns: Annotated[
        int | None, typer.Option(min=1, help="The most turns of a conversation.", show_default="all")
    ] = None,
    num_draft_tokens: Annotated[
        int | None, typer.Option(min=1, help="K of the arm with drafts.", show_default="the server's")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="Of sampling; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the order, the arrivals, and of sampling.")] = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Answers of full length, as synthetic prompts have.")
    ] = False,
    completions: Annotated[
        bool, typer.Option("--completions", help="Plain text over OpenAI's API, without a chat template.")
    ] = False,
    target_ttft: Annotated[
        float | None, typer.Option(min=0, metavar="MS", help="Goodput: the latest first token.")
    ] = None,
    target_itl: Annotated[
        float | None, typer.Option(min=0, metavar="MS", help="Goodput: the longest mean time of a token.")
    ] = None,
    target_e2e: Annotated[
        float | None, typer.Option(min=0, metavar="MS", help="Goodput: the latest end.")
    ] = None,
    baseline: BaselineOption = None,
    metrics_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The server's metrics, as in host:8002.")
    ] = None,
    model_name: ServedModelOption = None,
    build: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The recipe's build directory; build/<name> if left out."),
    ] = None,
    api_key_file: ApiKeyFileOption = None,
    api_key_env: ApiKeyEnvOption = None,
    baseline_api_key_file: BaselineApiKeyFileOption = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that a request may take.")] = 300,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where results go.",
            show_default="bench/<workload>-<time>",
            file_okay=False,
            writable=True,
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Samples as CSV instead of Parquet.")] = False,
    keep_answers: Annotated[
        bool, typer.Option("--keep-answers", help="Write answers.jsonl, for tune and distill.")
    ] = False,
    with_: Annotated[
        Literal["aiperf"] | None, typer.Option("--with", help="What sends the requests, instead of trtspec.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="DIR", help="The model's tokenizer, which aiperf needs.")
    ] = None,
    python: PythonOption = None,
    json: JsonOption = False,
) -> None:
    """Measure what drafts are worth on a deployment.

    Blocks of the same prompts take turns, with drafts and without, at each load; what is said of the speed-up
    has an interval of 95 % confidence. Ctrl-C keeps what was measured until then.
    """
    from trtspec.measure.bench.plan import BenchPlan
    from trtspec.measure.bench.result import Targets
    from trtspec.measure.bench.session import BenchTargets, run
    from trtspec.measure.commands.measuring import Measuring
    from trtspec.measure.workloads.reading import read_workload
    from trtspec.measure.workloads.synthetic import NAME

    if (recipe is None) == (url is None):
        raise typer.BadParameter("name a recipe or a --url, one of the two")
    if pairs % 2:
        raise typer.BadParameter(
            "an even number, so that each arm begins equally often", param_hint="--pairs"
        )
    if with_ and tokenizer is None and recipe is None:
        raise typer.BadParameter("aiperf needs the model's tokenizer", param_hint="--tokenizer")
    if with_ and (api_key_file or api_key_env):
        # AIPerf takes it on its command line alone.
        raise typer.BadParameter("every user of this machine would see the key that aiperf is given")
    if with_ and keep_answers:
        raise typer.BadParameter("aiperf does not pass answers on", param_hint="--keep-answers")
    loads = _loads(streams, rate)
    found = read_workload(workload, seed, turns)
    plan = BenchPlan(
        workload=found,
        loads=loads,
        paired=False,
        pairs=pairs,
        block_prompts=block_prompts,
        warm_up=warm_up,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        ignore_eos=ignore_eos or found.name == NAME,
        burstiness=burstiness,
        num_draft_tokens=num_draft_tokens,
        chat=not completions,
        targets=Targets(*(None if ms is None else ms / 1000 for ms in (target_ttft, target_itl, target_e2e))),
    )
    folder = output or Path("bench", f"{found.name}-{datetime.now():%Y%m%d-%H%M%S}")
    asked = BenchTargets(
        url=url or "",
        model_name=model_name,
        baseline=baseline,
        metrics_url=metrics_url,
        timeout_s=timeout,
        folder=folder,
        as_csv=csv,
        keeps_answers=keep_answers,
        key=read_key(api_key_file, api_key_env),
        baseline_key=read_key(baseline_api_key_file),
        command=typed(),
    )
    with ExitStack() as stack:
        if recipe is not None:
            serving = _served(recipe, build, python, asked, plan)
            asked, plan, tokenizer_folder = stack.enter_context(serving)
            tokenizer = tokenizer or tokenizer_folder
        traffic = _traffic(plan, asked, tokenizer if with_ else None)
        outcome = run(plan, asked, stack.enter_context(Measuring()), traffic)
    _show(outcome.result, as_json=json)
    for file in (*outcome.files, *_report(outcome.result, folder)):
        out.status(f"wrote {file}")
    if outcome.is_interrupted:
        out.warning("stopped before the end: the result has what was measured until then")
        raise typer.Exit(INTERRUPTED)
    if outcome.result.is_unanswered:
        raise MeasureError(outcome.result.server.url, "every request failed", "the warnings above say how")


def _loads(streams: str | None, rate: str | None) -> tuple[OfferedLoad, ...]:
    from trtspec.measure.bench.result import OfferedLoad

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
    """Serves a built recipe; yields what to ask of it and how, and the folder of its tokenizer.

    Another engine's server decodes plainly only if it is started so: beside it, on a CPU, whose memory has
    room for two. The first of them on a GPU takes all of that.
    """
    from trtspec.base.roles import Role
    from trtspec.cli.terminal.built import find_build
    from trtspec.measure.bench.deployed import served
    from trtspec.measure.bench.result import BenchedModel
    from trtspec.recipe import gpus

    build = find_build(recipe, folder)
    if not build.is_current:
        out.warning(
            f"{recipe} has changed since {build.folder} was built from it, which is measured as it is"
        )
    models = build.recipe.models
    model = BenchedModel(
        name=build.recipe.serving.model_name,
        recipe=build.recipe.name,
        target=models[Role.TARGET].model,
        draft=models[Role.DRAFT].model if Role.DRAFT in models else None,
        num_draft_tokens=build.recipe.speculation.num_draft_tokens,
    )
    serve = partial(served, build, chat=plan.chat, python=python, say=out.status)
    with ExitStack() as stack:
        server, baseline = stack.enter_context(serve()), asked.baseline
        if build.is_of_server and baseline is None:
            if build.recipe.hardware.gpu == gpus.NONE:
                baseline = stack.enter_context(serve(plain=True)).url
            else:
                how = f"trtspec deploy {recipe} --plain serves it elsewhere, for --baseline URL"
                out.warning(f"without drafts nothing is measured, as its GPU has room for one server: {how}")
        found = replace(
            asked,
            url=server.url,
            model_name=server.model_name,
            metrics_url=server.metrics_url,
            model=model,
            baseline=baseline,
        )
        yield found, replace(plan, chat=server.has_chats), str(build.folder.resolve() / "tokenizer")


def _traffic(plan: BenchPlan, asked: BenchTargets, tokenizer: str | None) -> Traffic:
    """Returns what sends the requests: AIPerf, where there is a tokenizer for it."""
    from trtspec.measure.bench.traffic import OwnTraffic

    if tokenizer is None:
        return OwnTraffic()
    from trtspec.measure.bench.aiperf import AiperfTraffic

    return AiperfTraffic(tokenizer, chat=plan.chat, burstiness=plan.burstiness, timeout_s=asked.timeout_s)


def _report(result: BenchResult, folder: Path) -> Iterator[Path]:
    """Writes the report of what was measured, if anything was, and yields its file."""
    from trtspec.measure.report.document import write_report
    from trtspec.measure.report.page import page

    if result.levels:
        yield write_report(page(result), folder / "report.html")


def _show(result: BenchResult, *, as_json: bool) -> None:
    from trtspec.measure.bench.result import to_json
    from trtspec.measure.commands import results

    if as_json:
        out.data(to_json(result))
    else:
        results.print_result(result)
    for note in result.verdict.notes:
        out.warning(note)
