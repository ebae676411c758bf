"""The `trtspec` command: registers the commands and owns the exit status.

The status is 0 for success, 1 for a failure, 2 for wrong usage and 130 for Ctrl-C. A command is a module of
this package, with a function of its name and a tuple `EXAMPLES`; an underscore in the name is a space on the
command line. A group of commands has a tuple of functions `COMMANDS`, and a `HELP`. Modules that take long to
import are imported inside the function.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trtspec.base.explanation import explain
from trtspec.cli import (
    bench,
    bench_compare,
    build,
    check,
    ci,
    convert,
    deploy,
    deploy_status,
    deploy_stop,
    distill,
    doctor,
    generate,
    init,
    inspect,
    migrate,
    monitoring,
    plan,
    rollout,
    schema,
    serve,
    store,
    top,
    tune,
    verify,
)
from trtspec.cli.terminal.output import INTERRUPTED, out
from trtspec.cli.terminal.streams import open_closed

_COMMANDS = (
    init,
    migrate,
    doctor,
    check,
    plan,
    tune,
    distill,
    convert,
    build,
    deploy,
    deploy_status,
    deploy_stop,
    serve,
    generate,
    bench,
    bench_compare,
    verify,
    top,
    rollout,
    monitoring,
    inspect,
    store,
    ci,
    schema,
)
_DEBUG = "TRTSPEC_DEBUG"


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        out.result(f"trtspec {version('trtspec')}")
        raise typer.Exit


def _trtspec(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Speculative decoding on NVIDIA's stack: one recipe to engines under Triton."""


def _examples(*lines: str) -> str:
    # A line with a backspace alone keeps the help from filling the lines that follow into one paragraph.
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


class _Commands(TyperGroup):
    """Finds commands of one word or two: `deploy status` is a command, and so is `deploy`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        two = " ".join(args[:2])
        return super().resolve_command(ctx, [two, *args[2:]] if two in self.commands else args)


def _app(name: str) -> typer.Typer:
    # Without Rich's markup the help comes in half the time. `main` explains errors.
    return typer.Typer(
        name=name, cls=_Commands, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True
    )


def _group(name: str, module: ModuleType) -> typer.Typer:
    group = _app(name)
    for command in module.COMMANDS:
        group.command(command.__name__.rstrip("_").replace("_", " "))(command)
    return group


def _register() -> typer.Typer:
    app = _app("trtspec")
    start = "trtspec build recipe.yaml", "trtspec deploy recipe.yaml"
    app.callback(epilog=_examples(*start))(_trtspec)
    for module in _COMMANDS:
        function = module.__name__.rpartition(".")[2]
        name = function.replace("_", " ")
        examples = _examples(*module.EXAMPLES)
        if hasattr(module, "COMMANDS"):
            app.add_typer(_group(name, module), help=module.HELP, epilog=examples)
        else:
            app.command(name, epilog=examples)(getattr(module, function))
    return app


app = _register()


def main() -> None:
    """Runs the command line, as the console script; explains a known error and exits with status 1."""
    open_closed()
    try:
        app()
    except KeyboardInterrupt:
        # Typer hears Ctrl-C only once it has read all commands.
        sys.exit(INTERRUPTED)
    except Exception as error:
        explanation = explain(error)
        if explanation is None:
            out.error("this is a defect of trtspec; please report it with the trace below and your recipe")
            raise
        debug = os.environ.get(_DEBUG, "0") not in ("", "0")
        if debug:
            traceback.print_exc()
        for line in explanation.lines:
            out.status(line)
        out.error(explanation.summary)
        if explanation.repair:
            out.hint(explanation.repair)
        if not debug:
            out.status(f"({_DEBUG}=1 shows the trace)")
        sys.exit(1)
