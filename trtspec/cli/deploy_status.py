"""`trtspec deploy status`: what runs in containers, here or on a cluster."""

from __future__ import annotations

import typer

from trtspec.cli.terminal.options import ContextOption, JsonOption, NamespaceOption, OnKubernetesOption
from trtspec.cli.terminal.output import out

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

    With --kubernetes the exit status is 1 where one of them is in trouble.
    """
    if kubernetes or context or namespace:
        _on_cluster(context, namespace, json=json)
    else:
        _in_containers(json=json)


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


def _in_containers(*, json: bool) -> None:
    from trtspec.backends.containers.program import find_program
    from trtspec.deployment.deployed import find_deployed
    from trtspec.deployment.openai import serve_line

    program = find_program()
    found = [(deployed, deployed.lacks_api) for deployed in find_deployed(program)]
    rows = [
        {
            "name": deployed.state.name,
            "state": deployed.condition,
            "restarts": str(deployed.state.restarts),
            "url": deployed.deployment.url,
            "openai": deployed.deployment.api_url or "",
            "openai_state": "not running" if lacks_api else "",
            "build": str(deployed.deployment.build),
            "image": deployed.state.image,
            "created": deployed.state.created,
        }
        for deployed, lacks_api in found
    ]
    if json:
        out.json(rows)
    elif rows:
        out.table([list(row.values()) for row in rows], header=list(rows[0]))
    else:
        out.status(f"nothing is deployed in {program.name} here")
    for deployed, lacks_api in found:
        if lacks_api:
            name, line = deployed.state.name, serve_line(deployed.deployment)
            out.warning(f"OpenAI's API of {name} is not running, as after a restart of this machine")
            out.hint(line)
