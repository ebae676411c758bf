"""`trtspec deploy status`: the servers on this machine, or on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from trtspec.base.errors import UnavailableError
from trtspec.cli.terminal.options import ContextOption, JsonOption, NamespaceOption, OnKubernetesOption
from trtspec.cli.terminal.output import out
from trtspec.client.local_server import find_servers
from trtspec.deployment.deployed import find_deployed
from trtspec.pipeline.containers.program import find_program

if TYPE_CHECKING:
    from trtspec.client.local_server import LocalServer

EXAMPLES = (
    "trtspec deploy status",
    "trtspec deploy status --json",
    "trtspec deploy status --kubernetes --namespace serving",
)


def deploy_status(
    kubernetes: OnKubernetesOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    json: JsonOption = False,
) -> None:
    """Show the servers that deploy has started.

    With --kubernetes, the exit status is 1 if a server is in trouble.
    """
    if kubernetes or context or namespace:
        _on_cluster(context, namespace, json=json)
    else:
        _here(json=json)


def _on_cluster(context: str | None, namespace: str | None, *, json: bool) -> None:
    from trtspec.cluster.kubernetes.connection import connect
    from trtspec.cluster.kubernetes.deployed import find_deployed

    cluster = connect(context, namespace)
    found = find_deployed(cluster)
    if json:
        out.json([each.as_json() for each in found])
    elif found:
        rows = [list(each.as_json().values())[:6] for each in found]
        out.table(rows, header=("name", "what", "state", "ready", "build", "image"))
    else:
        out.status(f"nothing of trtspec is in namespace {cluster.namespace} of {cluster.context}")
    for each in found:
        if each.trouble:
            out.warning(each.trouble)
    if any(each.trouble for each in found):
        raise typer.Exit(1)


def _here(*, json: bool) -> None:
    from trtspec.deployment.openai import serve_line  # needs the extra for serving here

    program, servers = find_program(), find_servers()
    try:
        found = [(deployed, deployed.api_flaw) for deployed in find_deployed(program)]
    except UnavailableError as error:
        if not servers:
            raise
        found = []
        out.warning(f"containers are not shown: {error}")
    rows = [
        {
            "name": deployed.state.name,
            "state": deployed.condition,
            "restarts": str(deployed.state.restarts),
            "url": deployed.deployment.url,
            "openai": deployed.deployment.api_url or "",
            "openai_state": api_flaw,
            "build": str(deployed.deployment.build),
            "image": deployed.state.image,
            "created": deployed.state.created,
        }
        for deployed, api_flaw in found
    ]
    known = {(row["build"], row["url"]) for row in rows}
    rows += [_in_foreground(server) for server in servers if (server.build, server.url) not in known]
    if json:
        out.json(rows)
    elif rows:
        out.table([list(row.values()) for row in rows], header=list(rows[0]))
    else:
        out.status(f"nothing is deployed here, nor in {program.name}")
    for deployed, api_flaw in found:
        if api_flaw:
            name, line = deployed.state.name, serve_line(deployed.deployment)
            is_gone = api_flaw == "not running"
            why = "as after a restart of this machine" if is_gone else "and holds its port: end it first"
            out.warning(f"OpenAI's API of {name} is {api_flaw}, {why}")
            out.hint(line)


def _in_foreground(server: LocalServer) -> dict[str, str]:
    """Returns the row of a server outside containers, with the same columns."""
    return {
        "name": server.name,
        "state": "ready" if server.is_ready else "starting",
        "restarts": "",
        "url": server.url,
        "openai": server.openai or "",
        "openai_state": "",
        "build": server.build,
        "image": "",
        "created": server.created,
    }
