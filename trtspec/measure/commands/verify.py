"""`trtspec verify` checks whether drafts change the target's text."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trtspec.base.errors import UnavailableError
from trtspec.cli.terminal.options import (
    ApiKeyEnvOption,
    ApiKeyFileOption,
    JsonOption,
    OutputOption,
    ServedModelOption,
    ServerUrlOption,
    read_key,
    typed,
)
from trtspec.cli.terminal.output import out
from trtspec.measure.verify.cases import NAMES
from trtspec.measure.verify.distribution import distributions
from trtspec.measure.verify.opening import (
    BuiltTarget,
    ServerAddress,
    built_target,
    in_this_process,
    on_server,
)
from trtspec.measure.verify.prompts import VerifyPrompt, Vocabulary, asked, built_in
from trtspec.measure.verify.result import CaseResult, Difference, GreedyComparison, Sampling, VerifyResult
from trtspec.measure.verify.sides import Sides, VerificationSettings
from trtspec.measure.verify.verification import num_requests, usual_lengths
from trtspec.measure.verify.verification import verify as run
from trtspec.measure.workloads.reading import read_workload

Dtype = Literal["float32", "float16", "bfloat16", "fp8"]
_SEED = 2**32 - 1
_NARROWED = ("--prompt", "--num-draft-tokens", "--draws")

EXAMPLES = (
    "trtspec verify recipe.yaml    # the engines of its build, in this process",
    "trtspec verify recipe.yaml --url http://127.0.0.1:8000",
    "trtspec verify recipe.yaml --draws 0 --prompt code-1 --num-draft-tokens 3",
    "trtspec verify recipe.yaml --cases stops,json",
)


CasesOption = Annotated[
    str | None,
    typer.Option(
        "--cases",
        metavar="NAME,NAME",
        help=f"The cases that broke other servers: {', '.join(NAMES)}; or none.",
        show_default="all",
    ),
]


def chosen_cases(given: str | None) -> tuple[str, ...]:
    """Returns the names of the cases that are run."""
    if given is None:
        return NAMES
    names = tuple(part.strip() for part in given.split(",") if part.strip() not in ("", "none"))
    if unknown := [name for name in names if name not in NAMES]:
        raise typer.BadParameter(f"no case is {unknown[0]}; {', '.join(NAMES)}", param_hint="--cases")
    return names


_SHOWN, _NAMED = 8, 2
"""How many differences of a kind are shown, and in how many ways each was found; the others are counted."""


@dataclass(frozen=True, slots=True)
class VerifyCommandOptions:
    """The options of `trtspec verify`."""

    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RECIPE]", help="A built recipe; --url alone needs none.", show_default=False
        ),
    ] = None
    output: OutputOption = None
    url: ServerUrlOption = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the model's tokenizer.", show_default="the build's"),
    ] = None
    model_name: ServedModelOption = None
    api_key_file: ApiKeyFileOption = None
    api_key_env: ApiKeyEnvOption = None
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Prompts: .jsonl, .json, .parquet, .txt.", show_default="a built-in set"
        ),
    ] = None
    prompts: Annotated[int, typer.Option(min=1, help="The most prompts to take of the workload.")] = 32
    prompt: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Try only this prompt; may be repeated.")
    ] = None
    num_draft_tokens: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="A draft length to try; may be repeated.",
            show_default="as deployed, each up to 8, the longest",
        ),
    ] = None
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of a greedy answer.")] = 64
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8
    dtype: Annotated[
        Dtype | None,
        typer.Option(
            help="The precision in which the target computes.", show_default="the engine's, or bfloat16"
        ),
    ] = None
    near_tie: Annotated[
        float | None,
        typer.Option(
            metavar="NATS",
            min=0,
            help="The largest difference of log-probability at which rounding may choose either token.",
            show_default="by dtype and the noise of plain decoding",
        ),
    ] = None
    draws: Annotated[
        int,
        typer.Option(
            min=0, help="Continuations to sample of each prompt, with drafts and without; 0 for none."
        ),
    ] = 500
    temperature: Annotated[float, typer.Option(min=0.01, help="Sample at this temperature.")] = 1.0
    seed: Annotated[int, typer.Option(min=0, max=_SEED, help="Repeat the sampling of this seed.")] = 0
    cases: CasesOption = None
    json: JsonOption = False


def verify(options: VerifyCommandOptions) -> None:
    """Tell whether drafts change the target's text.

    Verify compares greedy answers with drafts with those of the target alone. Where they differ, the target's
    own margin decides: a near tie is reported, anything else is a fault. A statistical test compares sampled
    continuations. The exit status is 1 for a fault, and if nothing was proved.

    Without --url, the engines run in this process. For an engine.backend with a server of its own, prove
    compares it without drafts and with them.
    """
    _check_usage(options)
    # A few prompts alone are asked for to look at these.
    cases = chosen_cases(options.cases or ("none" if options.prompt else None))
    built = built_target(options.recipe, options.output) if options.recipe else None
    if built:
        _check_build(options, built)
    if options.draws:
        distributions()
    vocabulary = Vocabulary.load(options.tokenizer or (built.build.folder / "tokenizer" if built else Path()))
    file = options.workload
    known = read_workload(file, options.seed, 1).prompts[: options.prompts] if file else built_in(vocabulary)
    questions = asked(known, vocabulary, options.prompt or ())
    settings = VerificationSettings(
        lengths=tuple(options.num_draft_tokens or usual_lengths(built.longest_draft if built else None)),
        max_tokens=options.max_tokens,
        concurrency=options.concurrency,
        dtype=options.dtype or (built.numbers if built else None),
        near_tie=options.near_tie,
        draws=options.draws,
        temperature=options.temperature,
        seed=options.seed,
        cases=cases,
    )
    sides = _sides(options, built, vocabulary)
    result = asyncio.run(_verify(sides, vocabulary, questions, settings))
    out.show(ShownVerification(result), as_json=options.json)
    if not result.is_lossless:
        raise typer.Exit(1)


def _check_usage(options: VerifyCommandOptions) -> None:
    """Refuses options that do not go together."""
    if options.recipe is None and (options.url is None or options.tokenizer is None):
        raise typer.BadParameter("name a recipe, or a --url with its --tokenizer")


def _check_build(options: VerifyCommandOptions, built: BuiltTarget) -> None:
    """Raises UnavailableError for a build that cannot decode plainly on request."""
    if launch := built.build.launch:
        problem = f"is for {launch.backend}, which cannot decode plainly on request"
        repair = f"start it without drafts and with them: trtspec prove {options.recipe}"
        raise UnavailableError(built.build.folder, problem, repair)
    if built.has_engine_draft:
        problem = "drafts inside its engine, which cannot decode plainly on request and does not sample"
        repair = "compare its server with one of the target alone: trtspec prove PLAIN URL --draws 0"
        raise UnavailableError(built.build.folder, problem, repair)


def _sides(
    options: VerifyCommandOptions, built: BuiltTarget | None, vocabulary: Vocabulary
) -> AbstractAsyncContextManager[Sides]:
    """Returns the two sides to compare: of one server, or of engines in this process."""
    if options.url is not None:
        name = options.model_name or (built.model_name if built else None)
        server = ServerAddress(options.url, name, read_key(options.api_key_file, options.api_key_env))
        return on_server(server, vocabulary)
    assert built is not None
    return in_this_process(built.build.folder, options.model_name or built.model_name)


async def _verify(
    opened: AbstractAsyncContextManager[Sides],
    vocabulary: Vocabulary,
    prompts: list[VerifyPrompt],
    settings: VerificationSettings,
) -> VerifyResult:
    async with opened as sides:
        with out.progress("verify", num_requests(settings, len(prompts)), "requests") as advance:
            return await run(sides, vocabulary, prompts, settings, advance, typed(_NARROWED))


@dataclass(frozen=True, slots=True)
class ShownVerification:
    """The result of a verification."""

    result: VerifyResult

    def tell(self) -> None:
        """Prints the tables, each difference once, and the verdict in one sentence."""
        bound, noise = self.result.tolerance, self.result.noise
        ways = [noise, *self.result.comparisons]
        out.result(f"plain decoding  {self.result.plain}")
        if self.result.speculative != self.result.plain:
            out.result(f"with drafts     {self.result.speculative}")
        out.sentence(f"near ties       up to {bound.value:.2g} nats: {bound.reason}")
        out.result()
        header = ("greedy", "alike", "near ties", "faults", "moved", "accepted")
        out.table([_row(way, is_noise=way is noise) for way in ways], header=header)
        _print_differences(self.result, ways)
        if self.result.sampling:
            out.result()
            _print_sampling(self.result.sampling)
        if self.result.cases:
            out.result()
            print_cases(self.result.cases)
        out.result()
        out.sentence(verdict(self.result))

    def as_json(self) -> dict[str, Any]:
        return self.result.as_dict()


def verdict(result: VerifyResult) -> str:
    """Returns the verdict in one sentence."""
    if not result.is_lossless:
        return f"not proved lossless: {'; '.join(result.reasons)}"
    count = sum(way.texts for way in result.comparisons)
    parted = sum(len(way.near_ties) for way in result.comparisons)
    if not parted:
        said = f"lossless: all {count} greedy answers with drafts are the same as the target's alone"
    else:
        by_itself = f"{len(result.noise.near_ties)} of {result.noise.texts}"
        said = (
            f"lossless except for rounding: {count - parted} of {count} greedy answers with drafts are the "
            f"same as the target's alone, and {parted} differ from a near tie on, as {by_itself} of plain "
            "decoding do"
        )
    if result.sampling and any(view.tells for view in result.sampling.views):
        said += ", and sampled text has the same distribution"
    elif result.sampling:
        said += "; too few of the sampled continuations differ to compare distributions"
    return said


def print_cases(cases: Iterable[CaseResult]) -> None:
    out.table(
        [(case.name, case.state, case.found or case.finds) for case in cases], ("case", "state", "found")
    )


def _row(way: GreedyComparison, *, is_noise: bool) -> tuple[str, ...]:
    parted = len({difference.prompt for difference in way.differences})
    accepted = ""
    if way.drafted:
        accepted = f"{(way.accepted or 0) / way.drafted:.0%} of {way.drafted}"
    return (
        _name(way) + (", the noise" if is_noise else ""),
        f"{way.texts - parted} of {way.texts}",
        str(len(way.near_ties)),
        str(len(way.faults)),
        "unknown" if way.moved is None else f"{way.moved:.1e}",
        accepted,
    )


def _name(way: GreedyComparison) -> str:
    lengths = {None: "K as deployed", 0: "plain"}
    length = lengths.get(way.num_draft_tokens, f"K={way.num_draft_tokens}")
    return f"{length}, {'one by one' if way.concurrency == 1 else f'{way.concurrency} at once'}"


def _print_differences(result: VerifyResult, ways: Iterable[GreedyComparison]) -> None:
    """Prints the differences, faults first; a difference found in several ways is printed once."""
    where: dict[tuple[object, ...], tuple[Difference, list[GreedyComparison]]] = {}
    for difference in result.prompts:
        where[_key(difference)] = difference, []
    for way in ways:
        for difference in way.differences:
            where.setdefault(_key(difference), (difference, []))[1].append(way)
    for kind in ("fault", "near tie"):
        found = [both for both in where.values() if both[0].kind == kind]
        for difference, own in found[:_SHOWN]:
            _print_difference(difference, own, result)
        if len(found) > _SHOWN:
            out.result()
            out.result(f"and {len(found) - _SHOWN} more of this kind: --json has them all")


def _key(difference: Difference) -> tuple[object, ...]:
    said = difference.expected, difference.found
    numbers = difference.what == "numbers"
    return (
        difference.kind,
        difference.prompt,
        difference.what,
        difference.position,
        *(() if numbers else said),
    )


def _print_difference(difference: Difference, ways: list[GreedyComparison], result: VerifyResult) -> None:
    named = [*map(_name, ways[:_NAMED]), *([f"{len(ways) - _NAMED} more"] if len(ways) > _NAMED else [])]
    names = f" ({'; '.join(named)})" if named else ""
    unit = "character" if difference.what == "text" else "token"
    out.result()
    out.result(f"{difference.kind}  {difference.prompt}, {unit} {difference.position}{names}")
    out.result(f"  after     {difference.context!r}")
    out.result(f"  expected  {difference.expected}")
    out.result(f"  found     {difference.found}")
    out.result(f"  {difference.meaning}")
    if difference.kind == "fault" and result.command:
        out.result(f"  again: {_again(difference, ways, result.command)}")


def _again(difference: Difference, ways: list[GreedyComparison], command: str) -> str:
    """Returns the command that repeats this prompt alone, with the Ks that differed."""
    lengths = {way.num_draft_tokens for way in ways} - {None, 0}
    options = [f"--num-draft-tokens {length}" for length in sorted(filter(None, lengths))]
    return " ".join([command, "--prompt", shlex.quote(difference.prompt), *options, "--draws 0"])


def _print_sampling(sampling: Sampling) -> None:
    out.sentence(
        f"sampling at temperature {sampling.temperature:g}: {sampling.draws} continuations of"
        f" {sampling.tokens} tokens with drafts, and as many without"
    )
    rows: list[tuple[object, ...]] = []
    for view in sampling.views:
        for draws in view.prompts:
            if draws.outcomes > 1:
                figures = draws.outcomes, f"{draws.distance:.3f}", f"{draws.p_value:.2g}"
                rows.append((view.of, draws.prompt, *figures, draws.most_different))
        bound = f"a fault below {sampling.limit:.2g}"
        rows.append((view.of, "all together", "", "", f"{view.p_value:.2g}", bound))
    out.table(rows, header=("by", "prompt", "outcomes", "variation", "p", "most different"))
    for view in sampling.views:
        if not view.tells:
            out.sentence(f"by {view.of}, too few continuations differ to find anything but gross faults")
            continue
        out.sentence(
            f"by {view.of}, a total variation of {view.found_everywhere:.2f} in each of these prompts, or of"
            f" {view.found_in_one:.2f} in one, would have been found {sampling.power:.0%} of the time"
        )
