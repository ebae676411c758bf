"""`trtspec plan`: every value of a build with where it came from, and the steps."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from trtspec.terminal.memory import embedded_as_json, memory_as_json, print_embedded, print_memory
from trtspec.terminal.options import BackendOption, JsonOption, OutputOption, RecipeArgument
from trtspec.terminal.output import out
from trtspec.terminal.steps import print_steps, steps_as_json

EXAMPLES = ("trtspec plan recipe.yaml", "trtspec plan recipe.yaml --commands")


def plan(
    recipe: RecipeArgument,
    commands: Annotated[bool, typer.Option("--commands", help="Print only the command lines.")] = False,
    output: OutputOption = None,
    backend: BackendOption = None,
    json: JsonOption = False,
) -> None:
    """Show every value of a build, its reason, and the steps."""
    from trtspec.build.plan import make_plan
    from trtspec.plan.embedded import embedded
    from trtspec.plan.memory import budget
    from trtspec.serving.executors.torch.host import look

    flags = {"output": output, "engine.backend": backend}
    made = make_plan(recipe, flags, out.watch, to_run=False)
    memory, on_cpu = budget(made.resolved), embedded(made.resolved, look())
    if json:
        values = [asdict(choice) for choice in made.resolved.choices]
        host = on_cpu and embedded_as_json(on_cpu)
        found = {"memory": memory_as_json(memory), "host_memory": host} if memory else {"memory": host}
        out.json({"values": values, **found, **steps_as_json(made)})
    elif commands:
        for step in made.steps:
            out.result(shlex.join(step.command) if step.command else f"# {step.name}: {step.summary}")
    else:
        choices = made.resolved.choices
        rows = [(choice.key, _as_yaml(choice.value), choice.origin, choice.reason) for choice in choices]
        out.table(rows, header=("value", "", "from", "because"))
        out.result()
        if memory:
            print_memory(memory)
            out.result()
        if on_cpu:
            print_embedded(on_cpu)
            out.result()
        print_steps(made)
    if memory and memory.problem:
        out.warning(f"{memory.problem}: fewer or shorter requests, fp8, more ranks or another GPU help")
    if on_cpu and on_cpu.problem:
        out.warning(f"{on_cpu.problem}: a smaller max_seq_len or more memory help")


def _as_yaml(value: bool | int | float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
