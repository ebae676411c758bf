"""`trtspec verify`: whether drafts change what the target says."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtspec.terminal.options import JsonOption, OutputOption
from trtspec.terminal.output import out

if TYPE_CHECKING:
    from trtspec.verify.prompts import Asked, Vocabulary
    from trtspec.verify.result import Result
    from trtspec.verify.second_opinion import SecondOpinion
    from trtspec.verify.verification import Settings

Dtype = Literal["float32", "float16", "bfloat16", "fp8"]
_SEED = 2**32 - 1
_NARROWED = ("--prompt", "--num-draft-tokens", "--draws")

EXAMPLES = (
    "trtspec verify recipe.yaml    # the engines of its build, in this process",
    "trtspec verify recipe.yaml --draws 0 --prompt code-1 --num-draft-tokens 3",
    "trtspec verify recipe.yaml --second-opinion .venv-vllm/bin/python",
)


def verify(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="The recipe, a YAML file.", show_default=False)
    ],
    output: OutputOption = None,
    prompt: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this prompt; may be given often.")
    ] = None,
    num_draft_tokens: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="A draft length to try; may be given often.",
            show_default="as deployed, each up to 8, the longest",
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of a greedy answer.")] = 64,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    dtype: Annotated[
        Dtype | None, typer.Option(help="What the target computes in.", show_default="the engine's")
    ] = None,
    near_tie: Annotated[
        float | None,
        typer.Option(
            metavar="NATS",
            min=0,
            help="How much likelier a token may be than another that rounding alone chose.",
            show_default="by dtype and the noise of plain decoding",
        ),
    ] = None,
    draws: Annotated[
        int, typer.Option(min=0, help="Sampled continuations of a prompt on either side; 0 for no sampling.")
    ] = 500,
    temperature: Annotated[float, typer.Option(min=0.01, help="Of the sampling.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=_SEED, help="Where the sampling's seeds come from.")] = 0,
    second_opinion: Annotated[
        str | None,
        typer.Option(metavar="PYTHON", help="A Python that has vLLM: what it says to the same prompts."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Tell whether drafts change what the target says.

    Greedy answers with drafts are held against those of the target alone. Where they part, the target's own
    margin decides: a near tie is reported, anything else is a fault. Sampled continuations are held against
    those of the target alone by a test of their distribution. The exit status is 1 for a fault, and where
    nothing was proved.
    """
    from trtspec.engine.directory import read_engine
    from trtspec.plan.choices import build_folder
    from trtspec.recipe.loader import load
    from trtspec.roles import Role
    from trtspec.terminal.verified import print_result
    from trtspec.verify.in_process import check_build
    from trtspec.verify.prompts import Vocabulary, asked, built_in
    from trtspec.verify.second_opinion import SecondOpinion
    from trtspec.verify.two_samples import distributions
    from trtspec.verify.verification import Settings, usual_lengths

    loaded = load(recipe)
    build, model_name = build_folder(loaded, {"output": output}, os.environ), loaded.recipe.serving.model_name
    check_build(build, model_name)
    vocabulary = Vocabulary.load(build / "tokenizer")
    prompts = asked(built_in(vocabulary), vocabulary, prompt or ())
    engine = read_engine(build / "target/engine")
    own_dtype = "fp8" if engine.quant_algo else engine.dtype
    if draws:
        distributions()
    settings = Settings(
        lengths=tuple(num_draft_tokens or usual_lengths(engine.max_draft_len)),
        max_tokens=max_tokens,
        concurrency=concurrency,
        dtype=dtype or own_dtype,
        near_tie=near_tie,
        draws=draws,
        temperature=temperature,
        seed=seed,
    )
    opinion = None
    if second_opinion:
        target = loaded.recipe.models[Role.TARGET]
        opinion = SecondOpinion(
            SecondOpinion.check(second_opinion),
            str(loaded.model_location(target)),
            target.revision,
            engine.dtype,
            vocabulary,
        )
    result = asyncio.run(_verify(build, model_name, vocabulary, prompts, settings, opinion))
    if json:
        out.json(result.as_dict())
    else:
        print_result(result)
    if not result.is_lossless:
        raise typer.Exit(1)


async def _verify(
    build: Path,
    model_name: str,
    vocabulary: Vocabulary,
    prompts: list[Asked],
    settings: Settings,
    opinion: SecondOpinion | None,
) -> Result:
    from trtspec.verify.in_process import InProcess, load_build
    from trtspec.verify.subject import Sides
    from trtspec.verify.verification import verify

    with out.progress(f"loading {build}"):
        subject = InProcess(f"{build}, in this process", load_build(build, model_name))
    try:
        with out.progress("verify", settings.requests(len(prompts)), "requests") as progress:
            sides = Sides(subject, subject)
            return await verify(
                sides, vocabulary, prompts, settings, progress.advance, opinion, _command(sys.argv[1:])
            )
    finally:
        await subject.close()


def _command(arguments: list[str]) -> str:
    """Returns the command line without what a narrower one says anew."""
    kept, skipping = [], False
    for argument in arguments:
        is_narrowed = argument.partition("=")[0] in _NARROWED
        if not skipping and not is_narrowed and argument != "--json":
            kept.append(argument)
        skipping = is_narrowed and "=" not in argument
    return shlex.join(["trtspec", *kept])
