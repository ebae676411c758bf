"""`trtspec deploy stop`: ends a server of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from typing import TYPE_CHECKING

from trtspec.base.errors import UnavailableError
from trtspec.cli.terminal.options import DeployedNameArgument
from trtspec.cli.terminal.output import out
from trtspec.client.local_server import find_servers
from trtspec.deployment.container import find_deployed, stop
from trtspec.pipeline.containers.program import find_program

if TYPE_CHECKING:
    from trtspec.client.local_server import LocalServer
    from trtspec.deployment.container import DeployedContainer
    from trtspec.pipeline.containers.program import Program

EXAMPLES = ("trtspec deploy stop", "trtspec deploy stop trtspec-tiny-0a1b2c3d")


def deploy_stop(name: DeployedNameArgument = None) -> None:
    """Stop a server that deploy has started.

    Requests in flight have the seconds of deploy --grace to end.
    """
    program, containers, servers = find_all()
    name = only_one(name, servers, "here")
    if server := servers[name]:
        server.stop()
    else:
        stop(program, containers[name])
    out.status(f"{name}: stopped")


def find_all() -> tuple[Program, dict[str, DeployedContainer], dict[str, LocalServer | None]]:
    """Returns the containers that deploy has started, and all servers by name; None for a container's own.

    Raises `UnavailableError` if there is no server, and docker or podman is there and does not answer.
    """
    program = find_program()
    servers = {(server.build, server.url): server for server in find_servers() if server.process}
    try:
        containers = {each.state.name: each for each in find_deployed(program)}
    except UnavailableError:
        if not servers and is_installed(program):
            raise
        containers = {}
    # A deploy in the foreground removes its container itself.
    found = {
        known: servers.pop((str(each.deployment.build), each.deployment.url), None)
        for known, each in containers.items()
    }
    return program, containers, found | {server.name: server for server in servers.values()}


def is_installed(program: Program) -> bool:
    """Says whether there can be containers here."""
    return shutil.which(program.name) is not None


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
        raise UnavailableError("server", problem, repair)
    raise UnavailableError(name, f"is not deployed {where}", repair)
