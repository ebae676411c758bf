"""`trtspec verify` checks whether drafts change the target's text."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from trtspec.backends.launch import ServerLaunch
from trtspec.base.errors import UnavailableError
from trtspec.base.roles import Role
from trtspec.cli.terminal.options import JsonOption, OutputOption, PythonOption
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.server_options import (
    ApiKeyEnvOption,
    ApiKeyFileOption,
    BaselineApiKeyFileOption,
    BaselineOption,
    ServedModelOption,
    ServerUrlOption,
    read_key,
    typed,
)
from trtspec.deployment.build import DeployedBuild, find_build
from trtspec.measure.commands.verified import print_result
from trtspec.measure.verify.distribution import distributions
from trtspec.measure.verify.in_turns import in_turns
from trtspec.measure.verify.opening import ServerAddress, in_this_process, on_servers
from trtspec.measure.verify.prompts import VerifyPrompt, Vocabulary, asked, built_in
from trtspec.measure.verify.result import VerifyResult
from trtspec.measure.verify.subject import Sides, VerificationSettings
from trtspec.measure.verify.verification import SecondOpinion, num_requests, usual_lengths
from trtspec.measure.verify.verification import verify as run
from trtspec.measure.workloads.reading import read_workload
from trtspec.pipeline.engine.directory import read_engine

Dtype = Literal["float32", "float16", "bfloat16", "fp8"]
_SEED = 2**32 - 1
_NARROWED = ("--prompt", "--num-draft-tokens", "--draws")

EXAMPLES = (
    "trtspec verify recipe.yaml    # the engines of its build, in this process",
    "trtspec verify recipe.yaml --python .venv-vllm/bin/python    # engine.backend: vllm",
    "trtspec verify recipe.yaml --url http://127.0.0.1:8000",
    "trtspec verify --url http://vllm:8000/v1 --baseline http://plain:8000/v1 --tokenizer ./model",
    "trtspec verify recipe.yaml --draws 0 --prompt code-1 --num-draft-tokens 3",
    "trtspec verify recipe.yaml --second-opinion .venv-vllm/bin/python",
)


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
    baseline: BaselineOption = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the model's tokenizer.", show_default="the build's"),
    ] = None
    model_name: ServedModelOption = None
    api_key_file: ApiKeyFileOption = None
    api_key_env: ApiKeyEnvOption = None
    baseline_api_key_file: BaselineApiKeyFileOption = None
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
    second_opinion: Annotated[
        str | None,
        typer.Option(metavar="PYTHON", help="Ask vLLM the same prompts too, with the Python that has it."),
    ] = None
    python: PythonOption = None
    json: JsonOption = False


def verify(options: VerifyCommandOptions) -> None:
    """Tell whether drafts change the target's text.

    Verify compares greedy answers with drafts with those of the target alone. Where they differ, the target's
    own margin decides: a near tie is reported, anything else is a fault. A statistical test compares sampled
    continuations. The exit status is 1 for a fault, and if nothing was proved.

    Without --url, the engines run in this process. For an engine.backend with a server of its own, verify
    starts two servers here: one without drafts, and then one with them.
    """
    _check_usage(options)
    built = _built(options.recipe, options.output) if options.recipe else None
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
    )
    opinion = _second_opinion(options.second_opinion, built, vocabulary)
    sides = _sides(options, built, vocabulary)
    result = asyncio.run(_verify(sides, vocabulary, questions, settings, opinion))
    if options.json:
        out.json(result.as_dict())
    else:
        print_result(result)
    if not result.is_lossless:
        raise typer.Exit(1)


def _check_usage(options: VerifyCommandOptions) -> None:
    """Refuses options that do not go together."""
    if options.recipe is None and (options.url is None or options.tokenizer is None):
        raise typer.BadParameter("name a recipe, or a --url with its --tokenizer")
    if options.baseline is not None and options.url is None:
        raise typer.BadParameter("goes with --url", param_hint="--baseline")
    if options.second_opinion and options.recipe is None:
        raise typer.BadParameter("needs the recipe, which names the model", param_hint="--second-opinion")


def _check_build(options: VerifyCommandOptions, built: _Built) -> None:
    """Refuses options that the engine or the server of this build does not support.

    Raises UnavailableError for an engine that drafts by itself, if no server of its target alone is named.
    """
    if built.launch and options.num_draft_tokens:
        problem = f"{built.launch.backend} takes K at its start only: speculation.num_draft_tokens"
        raise typer.BadParameter(problem, param_hint="--num-draft-tokens")
    if built.drafts_inside and options.url is None:
        problem = "drafts inside its engine, which cannot decode plainly on request and does not sample"
        repair = "name its server and one of the target alone: --url URL --baseline URL --draws 0"
        raise UnavailableError(built.build.folder, problem, repair)


def _second_opinion(python: str | None, built: _Built | None, vocabulary: Vocabulary) -> SecondOpinion | None:
    """Returns the vLLM of that Python, for the model of the build; None if none is requested."""
    if python is None or built is None:
        return None
    if built.numbers != built.dtype:
        out.warning(
            "the engine is quantized: if vLLM runs the model unquantized, that alone may change answers"
        )
    return SecondOpinion(SecondOpinion.find(python), built.model, built.revision, built.dtype, vocabulary)


def _sides(
    options: VerifyCommandOptions, built: _Built | None, vocabulary: Vocabulary
) -> AbstractAsyncContextManager[Sides]:
    """Returns the two sides to compare: two servers, one that is started twice, or engines in this
    process."""
    if options.url is not None:
        name = options.model_name or (built.model_name if built else None)
        server = ServerAddress(options.url, name, read_key(options.api_key_file, options.api_key_env))
        plain = None
        if options.baseline:
            key = read_key(options.baseline_api_key_file)
            plain = ServerAddress(options.baseline, options.model_name, key)
        return on_servers(server, plain, vocabulary)
    assert built is not None
    if not built.launch:
        return in_this_process(built.build.folder, options.model_name or built.model_name)
    doubt = built.build.doubt
    if doubt and options.draws:
        out.warning(f"{doubt}; --draws 0 leaves sampling out")
    return in_turns(built.build, options.python, vocabulary.end_ids, out.status)


@dataclass(frozen=True, slots=True)
class _Built:
    """Facts about a built recipe's target."""

    model_name: str
    model: str
    revision: str | None
    dtype: str
    numbers: str
    """The dtype in which the target computes."""
    longest_draft: int | None
    """The largest K of a request; None if no request can set K: on another vendor's server, and if the engine
    itself drafts.
    """
    build: DeployedBuild
    launch: ServerLaunch | None = None
    """The start of another vendor's server; None for a build with engines."""
    drafts_inside: bool = False
    """True if the engine itself drafts."""


def _built(recipe: Path, output: str | None) -> _Built:
    build = find_build(recipe, output)
    loaded = build.loaded
    target = loaded.recipe.models[Role.TARGET]
    model, revision = str(loaded.locations[Role.TARGET]), target.revision
    if launch := build.launch:
        told = dict(zip(launch.arguments, launch.arguments[1:], strict=False))
        dtype = told.get("--dtype", "bfloat16")
        numbers = "fp8" if target.quantization.weights == "fp8" else dtype
        return _Built(launch.served_model_name, model, revision, dtype, numbers, None, build, launch)
    engine = read_engine(build.folder / "target/engine")
    return _Built(
        loaded.recipe.serving.triton_name,
        model,
        revision,
        engine.dtype,
        "fp8" if engine.quant_algo else engine.dtype,
        None if engine.drafts_inside else engine.max_draft_len,
        build,
        drafts_inside=engine.drafts_inside,
    )


async def _verify(
    opened: AbstractAsyncContextManager[Sides],
    vocabulary: Vocabulary,
    prompts: list[VerifyPrompt],
    settings: VerificationSettings,
    opinion: SecondOpinion | None,
) -> VerifyResult:
    if opinion is not None:
        out.status(f"{opinion.python} starts vLLM at the end, which may take minutes")
    async with opened as sides:
        with out.progress("verify", num_requests(settings, len(prompts)), "requests") as told:
            return await run(sides, vocabulary, prompts, settings, told, opinion, typed(_NARROWED))
