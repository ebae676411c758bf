"""`trtspec deploy stop`: ends a server, here or on a cluster."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import typer

from trtspec.base.errors import UnavailableError
from trtspec.cli.terminal.options import ContextOption, NamespaceOption, OnKubernetesOption
from trtspec.cli.terminal.output import INTERRUPTED, out
from trtspec.client.local_server import find_servers
from trtspec.deployment.deployed import find_deployed, stop
from trtspec.pipeline.containers.program import find_program

EXAMPLES = (
    "trtspec deploy stop",
    "trtspec deploy stop trtspec-tiny-0a1b2c3d",
    "trtspec deploy stop llama --kubernetes --namespace serving",
)


def deploy_stop(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The server's name, as trtspec deploy status shows it.", show_default="the only one"
        ),
    ] = None,
    kubernetes: OnKubernetesOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Stop a server that deploy has started.

    The server is on this machine or, with --kubernetes, on a cluster. Requests in flight have the seconds of
    deploy --grace, or of the recipe, to end. On a cluster, stop deletes all objects of the deployment except
    volume claims, because these hold engines.
    """
    if kubernetes or context or namespace:
        _on_cluster(name, context, namespace)
    else:
        _here(name)


def _on_cluster(name: str | None, context: str | None, namespace: str | None) -> None:
    from trtspec.cluster.commands.kubernetes import tell_left
    from trtspec.cluster.kubernetes.connection import connect
    from trtspec.cluster.kubernetes.deployed import find_names, stop

    cluster = connect(context, namespace)
    name = _chosen(name, find_names(cluster), f"in namespace {cluster.namespace} of {cluster.context}")
    try:
        with out.progress(f"stopping {name}") as advance:
            left = stop(cluster, name, lambda does: advance(0, does))
    except KeyboardInterrupt:
        out.status(f"interrupted: {name} is deleted, and its pods end by themselves")
        raise typer.Exit(INTERRUPTED) from None
    tell_left(cluster, left)
    out.status(f"{name}: stopped")


def _here(name: str | None) -> None:
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
    name = _chosen(name, foreground, f"here or in {program.name}")
    if server := foreground[name]:
        server.stop()
    else:
        stop(program, found[name])
    out.status(f"{name}: stopped")


def _chosen(name: str | None, found: Collection[str], where: str) -> str:
    """Returns the given name, or that of the only deployment; raises `UnavailableError`."""
    if name is None and len(found) == 1:
        (name,) = found
    if name in found:
        assert name
        return name
    repair = f"deployed are {', '.join(sorted(found))}" if found else None
    if name is None:
        problem = "which one?" if found else f"nothing is deployed {where}"
        raise UnavailableError("deploy stop", problem, repair)
    raise UnavailableError(name, f"is not deployed {where}", repair)
