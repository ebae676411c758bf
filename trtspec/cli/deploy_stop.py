"""`trtspec deploy stop`: ends a server of this machine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import typer

from trtspec.base.errors import UnavailableError
from trtspec.cli.terminal.output import out
from trtspec.client.local_server import find_servers
from trtspec.deployment.container import find_deployed, stop
from trtspec.pipeline.containers.program import find_program

EXAMPLES = ("trtspec deploy stop", "trtspec deploy stop trtspec-tiny-0a1b2c3d")


def deploy_stop(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The server's name, as trtspec deploy status shows it.", show_default="the only one"
        ),
    ] = None,
) -> None:
    """Stop a server that deploy has started.

    Requests in flight have the seconds of deploy --grace to end.
    """
    program = find_program()
    servers = {(server.build, server.url): server for server in find_servers() if server.process}
    try:
        found = {deployed.state.name: deployed for deployed in find_deployed(program)}
    except UnavailableError:
        if not servers:
            raise
        found = {}
    # A deploy in the foreground removes its container itself.
    foreground = {
        known: servers.pop((str(deployed.deployment.build), deployed.deployment.url), None)
        for known, deployed in found.items()
    }
    foreground |= {server.name: server for server in servers.values()}
    name = only_one(name, foreground, f"here or in {program.name}")
    if server := foreground[name]:
        server.stop()
    else:
        stop(program, found[name])
    out.status(f"{name}: stopped")


def only_one(name: str | None, found: Collection[str], where: str) -> str:
    """Returns the given name, or that of the only deployment; raises `UnavailableError`."""
    if name is None and len(found) == 1:
        (name,) = found
    if name in found:
        assert name
        return name
    repair = f"deployed are {', '.join(sorted(found))}" if found else None
    if name is None:
        problem = "which one?" if found else f"nothing is deployed {where}"
        raise UnavailableError("stop", problem, repair)
    raise UnavailableError(name, f"is not deployed {where}", repair)
