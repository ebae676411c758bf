"""`trtspec deploy logs`: the log of a server of this machine."""

from __future__ import annotations

import subprocess
from typing import Annotated

import typer

from trtspec.cli.deploy_stop import find_all, only_one
from trtspec.cli.terminal.options import DeployedNameArgument

EXAMPLES = ("trtspec deploy logs", "trtspec deploy logs trtspec-tiny-0a1b2c3d --follow")


def deploy_logs(
    name: DeployedNameArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the server ends.")] = False,
) -> None:
    """Show the log of a server that deploy has started.

    That is the log of Triton, or of another engine's server.
    """
    program, _, servers = find_all()
    name = only_one(name, servers, "here")
    goes_on = ["--follow"] if follow else []
    words = [program.name, "logs", *goes_on, name]
    if server := servers[name]:
        until = [f"--pid={server.process}"] if follow else []
        words = ["tail", "--lines=+1", *goes_on, *until, server.log]
    raise typer.Exit(subprocess.run(words, check=False).returncode)  # noqa: S603
