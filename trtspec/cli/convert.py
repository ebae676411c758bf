"""`trtspec convert`: only the checkpoints of a build."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.roles import Role
from trtspec.terminal.options import JsonOption, OutputOption, RecipeArgument
from trtspec.terminal.output import out
from trtspec.terminal.steps import run_steps

if TYPE_CHECKING:
    from trtspec.build.plan import Plan

EXAMPLES = (
    "trtspec convert recipe.yaml",
    "trtspec convert recipe.yaml --only draft",
    "trtspec convert recipe.yaml --verify",
    "trtspec convert recipe.yaml --medusa-heads ./medusa-vicuna-7b-v1.3",
)


def convert(
    recipe: RecipeArgument,
    only: Annotated[Role | None, typer.Option("--only", help="Convert this model alone.")] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Prove afterwards that all ranks together are the original weights."),
    ] = False,
    medusa_heads: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Convert the target with these heads, for an engine of NVIDIA's own."
        ),
    ] = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Convert a recipe's models to TensorRT-LLM checkpoints.

    With --medusa-heads that is one of the target and Medusa's heads together; how TensorRT-LLM builds and
    serves it is printed, since trtspec's coordinator does not: such an engine drafts by itself.
    """
    from trtspec.build.plan import make_plan
    from trtspec.recipe.loader import load
    from trtspec.steps import calibrate
    from trtspec.steps import convert as converting
    from trtspec.steps import verify as verifying
    from trtspec.terminal.engines import require_engines

    require_engines(recipe, "no checkpoint to convert")
    if only and only not in load(recipe).recipe.models:
        raise typer.BadParameter(f"{recipe} has no {only}", param_hint="--only")
    made = make_plan(recipe, {"output": output}, out.watch, to_run=True)
    if medusa_heads:
        if only or verify:
            raise typer.BadParameter("goes with neither --only nor --verify", param_hint="--medusa-heads")
        _convert_medusa(made, medusa_heads, json=json)
        return
    kinds = {calibrate.KIND, converting.KIND, *([verifying.KIND] if verify else [])}
    chosen = [step for step in made.steps if step.kind in kinds and only in (step.role, None)]
    run_steps(made, chosen, json=json)


def _convert_medusa(made: Plan, folder: Path, *, json: bool) -> None:
    import shlex
    from dataclasses import replace

    from trtspec.engine.trtllm import build_argv
    from trtspec.models.heads.choices import choices
    from trtspec.models.heads.reading import read_head
    from trtspec.run.runner import run
    from trtspec.serving.executors.tensorrt_llm.choices import as_parameter
    from trtspec.steps import convert_medusa as converting

    head = read_head(folder)
    tree = choices(head.count)
    step = converting.step(made.resolved, head, len(tree), made.digests)
    run([step], made.output, made.digests, out.watch)
    options = replace(made.resolved.target.options, max_draft_len=len(tree))
    options = replace(options, max_num_tokens=max(options.max_num_tokens, options.num_verified_tokens))
    checkpoint = made.output / converting.OUTPUT
    argv = build_argv(str(checkpoint), str(made.output / "medusa/engine"), options, "medusa")
    parameters = {"decoding_mode": "medusa", "medusa_choices": as_parameter(tree)}
    if json:
        out.json({"checkpoint": str(checkpoint), "build": argv, "parameters": parameters})
        return
    out.result(str(checkpoint))
    out.result(shlex.join(argv))
    for name, value in parameters.items():
        out.result(f"{name}: {value}")
    out.hint("the command builds the engine; both parameters go to config.pbtxt of Triton's tensorrt_llm")
