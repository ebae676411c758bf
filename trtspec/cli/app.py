"""The `trtspec` command: it owns the exit status.

The status is 0 for success, 1 for a failure, 2 for wrong usage and 130 for Ctrl-C. `commands.py` has the
table of commands.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback
from io import TextIOWrapper
from typing import Annotated

import typer

import trtspec
from trtspec.base.explanation import explain
from trtspec.cli.commands import Root, examples, typer_app
from trtspec.cli.terminal.output import INTERRUPTED, out
from trtspec.cli.terminal.settings import apply_settings

_START = "trtspec build recipe.yaml && trtspec deploy recipe.yaml"

app = typer_app("trtspec", Root)


def _version(asked: bool) -> None:
    if asked:
        out.result(f"trtspec {trtspec.__version__}")
        raise typer.Exit


@app.callback(epilog=examples(_START))
def _trtspec(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Say nothing but warnings and errors.")
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            *("--verbose", "-v"),
            count=True,
            metavar="",
            show_default=False,
            help="Show all of it, with logs and traces; -vv for more.",
        ),
    ] = 0,
) -> None:
    """Speculative decoding on NVIDIA's stack: one recipe to engines under Triton."""
    out.set_talk(quiet=quiet, verbose=verbose)
    apply_settings(os.environ)


def main() -> None:
    """Runs the command line, as the console script; explains a known error and exits with status 1."""
    _open_closed_streams()
    if isinstance(sys.stdin, TextIOWrapper):
        # As the command line is read: whoever takes the text says what is wrong with it.
        sys.stdin.reconfigure(errors="surrogateescape")
    # The end of the process would take a second where torch is loaded, to look through it for garbage.
    atexit.register(gc.freeze)
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
        if out.verbose or os.environ.get("TRTSPEC_DEBUG", "0") not in ("", "0"):
            traceback.print_exc()
        for line in explanation.lines:
            out.status(line)
        out.error(explanation.summary)
        if explanation.repair:
            out.hint(explanation.repair)
        sys.exit(1)


def _open_closed_streams() -> None:
    """Gives a command whose stdin, stdout or stderr is closed (`>&-`) the null device in its place.

    Python has no stream there, and the first file that is opened would have its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, mode, encoding="utf-8"))
