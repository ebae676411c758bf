"""`trtspec prove` tells in one page whether a new server may replace an old one."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, get_args

import typer

from trtspec.base.errors import MeasureError
from trtspec.base.extras import require
from trtspec.base.files import write_atomically
from trtspec.base.own_prompts import OWN
from trtspec.cli.terminal.options import JsonOption, PythonOption, read_key, typed
from trtspec.cli.terminal.output import INTERRUPTED, out
from trtspec.cli.terminal.signals import ended_by_sigterm
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.commands.bench import loads_of
from trtspec.measure.commands.results import Measuring
from trtspec.measure.commands.selftest import LEFT_OUT
from trtspec.measure.commands.verify import CasesOption, Dtype, chosen_cases
from trtspec.measure.html.document import write_report
from trtspec.measure.prove.proof import Proof, Wanted, each_confidence
from trtspec.measure.prove.report import ShownProof, as_markdown, proof_page
from trtspec.measure.prove.run import ProofPlan, ProofTalk
from trtspec.measure.prove.run import prove as run
from trtspec.measure.prove.servers import ProvedServer, opened
from trtspec.measure.verify.prompts import Vocabulary, asked, built_in
from trtspec.measure.verify.sides import VerificationSettings
from trtspec.measure.workloads.reading import mixed, read_workload
from trtspec.measure.workloads.workload import Prompt, Workload
from trtspec.pipeline.machine.devices import find_gpus

EXAMPLES = (
    "trtspec prove recipe.yaml    # its drafts, against its target alone",
    "trtspec prove http://old:8000/v1 http://new:8000/v1 --tokenizer ./model",
    "trtspec prove old.yaml new.yaml --old-price 12 --new-price 12",
    "trtspec prove 'vllm serve ./model' 'vllm serve ./model --spec-model ./draft --spec-tokens 4'",
    "trtspec prove bf16.yaml fp8.yaml --different    # right answers, not equal texts",
)
_QUESTION_TOKENS = 6
_CAPITALS = (
    "France/Paris Japan/Tokyo Italy/Rome Egypt/Cairo Spain/Madrid Norway/Oslo Cuba/Havana Peru/Lima "
    "Austria/Vienna Kenya/Nairobi Ireland/Dublin Poland/Warsaw Portugal/Lisbon Sweden/Stockholm "
    "Finland/Helsinki Denmark/Copenhagen Germany/Berlin Russia/Moscow China/Beijing Canada/Ottawa "
    "Chile/Santiago Thailand/Bangkok Hungary/Budapest Belgium/Brussels"
)


@dataclass(frozen=True, slots=True)
class ProveCommandOptions:
    """The options of `trtspec prove`."""

    old: Annotated[
        str,
        typer.Argument(
            metavar="OLD", help="A URL, a built recipe, or a server's command in quotes.", show_default=False
        ),
    ]
    new: Annotated[
        str | None,
        typer.Argument(
            metavar="[NEW]", help="The server that is to replace it.", show_default="OLD, with its drafts"
        ),
    ] = None
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=f"Prompts: .jsonl, .json, .parquet, .txt; or kinds of ours: {','.join(OWN)}.",
            show_default="all of ours",
        ),
    ] = None
    prompts: Annotated[int, typer.Option(min=1, help="The most prompts whose texts are compared.")] = 32
    streams: Annotated[str, typer.Option(metavar="N,N", help="Numbers of clients at once.")] = "1,4,16,64"
    pairs: Annotated[int, typer.Option(min=6, help="Pairs of blocks at each load; an even number.")] = 6
    block_prompts: Annotated[
        int | None, typer.Option(min=1, help="Prompts in a block.", show_default="3 a stream")
    ] = None
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of an answer.")] = 64
    chat: Annotated[
        bool, typer.Option("--chat", help="Measure the speed with chats, not with plain text.")
    ] = False
    draws: Annotated[
        int, typer.Option(min=0, help="Continuations to sample of each prompt from either; 0 for none.")
    ] = 500
    cases: CasesOption = None
    dtype: Annotated[
        Dtype | None,
        typer.Option(help="The precision in which the model computes.", show_default="bfloat16, if unknown"),
    ] = None
    near_tie: Annotated[
        float | None,
        typer.Option(metavar="NATS", min=0, help="The bound of near ties.", show_default="as verify has it"),
    ] = None
    at_least: Annotated[
        float | None,
        typer.Option(min=0, metavar="RATIO", help="The speed that NEW must have at each load, over OLD's."),
    ] = None
    different: Annotated[
        bool,
        typer.Option("--different", help="Texts may differ, as of quantizations: compare right answers."),
    ] = False
    old_price: Annotated[
        float | None, typer.Option(min=0, metavar="USD", help="Dollars an hour of OLD's server.")
    ] = None
    new_price: Annotated[
        float | None,
        typer.Option(min=0, metavar="USD", help="Dollars an hour of NEW's.", show_default="OLD's"),
    ] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the tokenizer.", show_default="the recipe's"),
    ] = None
    old_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="OLD's model.", show_default="the only one")
    ] = None
    new_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="NEW's model.", show_default="the only one")
    ] = None
    old_key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="A file with OLD's API key.")] = (
        None
    )
    new_key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="A file with NEW's API key.")] = (
        None
    )
    python: PythonOption = None
    in_turns: Annotated[
        bool | None,
        typer.Option(
            "--in-turns/--at-once",
            help="Run one of two servers at a time.",
            show_default="in turns if both start here, on a GPU",
        ),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Repeat the order and the sampling of this seed.")] = 0
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write report.html, summary.md and proof.json here.",
            show_default="proof/<time>",
            file_okay=False,
        ),
    ] = None
    json: JsonOption = False


def prove(options: ProveCommandOptions) -> None:
    """Prove that a new server may replace an old one.

    Prove compares greedy and sampled texts, runs cases that broke other servers, and measures the speed of
    both at each load. All intervals of the speed hold together with 99 %. Without NEW it compares the drafts
    of one server with its target alone.

    The exit status is 0 if everything is proven that was asked for, 1 if something is refuted, and 3 if
    something is left open.
    """
    require("trtspec prove", "matplotlib", "scipy", "yarl", extra="measure")
    _check_usage(options)
    folder = options.output or Path("proof", f"{datetime.now():%Y%m%d-%H%M%S}")
    with ExitStack() as stack:
        stack.enter_context(ended_by_sigterm())
        old, new = _servers(options, stack)
        if options.draws and (doubt := old.doubt or new.doubt):
            out.warning(f"{doubt}; --draws 0 leaves sampling out")
        talk = ProofTalk(out.status, out.progress, stack.enter_context(Measuring()))
        proof = asyncio.run(run(old, new, _plan(options, old, new, folder), talk))
    _end(proof, folder, as_json=options.json)


def _end(proof: Proof, folder: Path, *, as_json: bool) -> None:
    """Writes the files, prints the result and ends with its status."""
    out.show(ShownProof(proof), as_json=as_json)
    for note in proof.bench.verdict.notes:
        out.warning(note)
    write_atomically(folder / "proof.json", json.dumps(proof.as_json(), indent=2) + "\n")
    write_atomically(folder / "summary.md", as_markdown(proof))
    write_report(proof_page(proof), folder / "report.html")
    out.status(f"wrote report.html, summary.md and proof.json into {folder}")
    if proof.bench.is_partial:
        out.warning("stopped early: the result has the measurements so far")
        raise typer.Exit(INTERRUPTED)
    if proof.bench.is_unanswered:
        raise MeasureError(proof.new, "every request failed", "the warnings above say why")
    if proof.outcome != "proven":
        raise typer.Exit(1 if proof.outcome == "refuted" else LEFT_OUT)


def _check_usage(options: ProveCommandOptions) -> None:
    """Refuses options that do not go together."""
    if options.pairs % 2:
        raise typer.BadParameter(
            "an even number, so that each server begins equally often", param_hint="--pairs"
        )
    if options.new_price is not None and options.old_price is None:
        raise typer.BadParameter("goes with --old-price", param_hint="--new-price")
    if options.different and options.new is None:
        raise typer.BadParameter("needs NEW, the other quantization", param_hint="--different")


def _servers(options: ProveCommandOptions, stack: ExitStack) -> tuple[ProvedServer, ProvedServer]:
    """Returns both servers; the same one twice if it can decode plainly on request."""
    key, model = read_key(options.old_key_file), options.old_model
    old = stack.enter_context(opened(options.old, options.python, key, model))
    if options.new is not None:
        key, model = read_key(options.new_key_file), options.new_model
        return old, stack.enter_context(opened(options.new, options.python, key, model))
    if old.decodes_plainly:
        return old, old
    if not options.old.partition(":")[0].endswith((".yaml", ".yml")):
        raise typer.BadParameter(
            "this server cannot decode plainly on request: name NEW too", param_hint="NEW"
        )
    return stack.enter_context(opened(options.old, options.python, key, model, plain=True)), old


def _plan(options: ProveCommandOptions, old: ProvedServer, new: ProvedServer, folder: Path) -> ProofPlan:
    tokenizer = options.tokenizer or new.tokenizer or old.tokenizer
    if tokenizer is None:
        raise typer.BadParameter("name the folder of the model's tokenizer", param_hint="--tokenizer")
    vocabulary, loads = Vocabulary.load(tokenizer), loads_of(options.streams, None)
    workload = _workload(options, vocabulary)
    questions = tuple(prompt for prompt in workload.prompts if prompt.answer)
    price = options.old_price
    starts_both = old is not new and old.start is not None and new.start is not None
    in_turns = options.in_turns if options.in_turns is not None else bool(find_gpus())
    return ProofPlan(
        bench=BenchPlan(
            workload,
            loads,
            paired=False,
            pairs=options.pairs,
            block_prompts=options.block_prompts,
            max_tokens=options.max_tokens,
            seed=options.seed,
            chat=options.chat,
            confidence=each_confidence(len(loads)),
        ),
        settings=VerificationSettings(
            lengths=(None,),
            max_tokens=options.max_tokens,
            dtype=options.dtype or (old.dtype if old.dtype in get_args(Dtype) else None),
            near_tie=options.near_tie,
            draws=options.draws,
            seed=options.seed,
            cases=() if options.different else chosen_cases(options.cases),
            subject="drafts" if options.new is None else "servers",
        ),
        prompts=asked(workload.prompts[: options.prompts], vocabulary),
        vocabulary=vocabulary,
        questions=(questions or _questions()) if options.different else (),
        wanted=Wanted(
            options.at_least,
            None if price is None else (price, price if options.new_price is None else options.new_price),
            is_equal=not options.different,
        ),
        in_turns=in_turns and starts_both,
        folder=folder,
        command=typed(),
    )


def _workload(options: ProveCommandOptions, vocabulary: Vocabulary) -> Workload:
    """Returns the prompts of a file, or trtspec's own of these kinds."""
    given = options.workload
    kinds = given.split(",") if given else list(OWN)
    if given and not set(kinds) <= OWN.keys():
        return read_workload(given, options.seed, 1)
    own = [prompt for prompt in built_in(vocabulary) if prompt.category in kinds or not given]
    return Workload("trtspec's own prompts", ",".join(kinds), mixed(tuple(own), options.seed))


def _questions() -> tuple[Prompt, ...]:
    """Returns questions with right answers, each after an example of its kind."""
    sums = [(7 * number + 4, 3 * number + 5) for number in range(1, 77)]
    asked = [(f"What is {a} + {b}?", str(a + b), "What is 2 + 3?", "5") for a, b in sums]
    asked += [
        (f"What is the capital of {land}?", city, "What is the capital of Greece?", "Athens")
        for land, city in (pair.split("/") for pair in _CAPITALS.split())
    ]
    return tuple(
        Prompt(
            f"question-{number}", (f"Q: {first}\nA: {known}\n\nQ: {text}\nA:",), "", _QUESTION_TOKENS, right
        )
        for number, (text, right, first, known) in enumerate(asked, 1)
    )
