"""`trtspec deploy status`: the servers on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtspec.base.errors import UnavailableError
from trtspec.cli.deploy_stop import is_installed
from trtspec.cli.terminal.options import JsonOption
from trtspec.cli.terminal.output import out
from trtspec.client.local_server import find_servers
from trtspec.deployment.container import find_deployed
from trtspec.pipeline.containers.program import find_program

if TYPE_CHECKING:
    from trtspec.client.local_server import LocalServer

_SHOWN = {
    "url": "model",
    "openai": "OpenAI's API",
    "restarts": "restarts",
    "build": "build",
    "image": "image",
    "created": "since",
}
"""The keys of a server that people see below its name and state, each with its title."""
EXAMPLES = ("trtspec deploy status", "trtspec deploy status --json")


def deploy_status(json: JsonOption = False) -> None:
    """Show the servers that deploy has started."""
    program, servers = find_program(), find_servers()
    try:
        found = [(deployed, deployed.api_flaw) for deployed in find_deployed(program)]
    except UnavailableError as error:
        found = []
        if is_installed(program):
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
    out.show(_ShownServers(rows), as_json=json)
    for deployed, api_flaw in found:
        if api_flaw:
            name, line = deployed.state.name, shlex.join(deployed.deployment.serve_words())
            is_gone = api_flaw == "not running"
            why = "as after a restart of this machine" if is_gone else "and holds its port: end it first"
            out.warning(f"OpenAI's API of {name} is {api_flaw}, {why}")
            out.hint(line)


@dataclass(frozen=True, slots=True)
class _ShownServers:
    """The servers: for people one below the other, with one address on a line."""

    rows: Sequence[dict[str, str]]

    def tell(self) -> None:
        if not self.rows:
            out.status("nothing is deployed here")
        for row in self.rows:
            out.result(f"{row['name']}  {row['state']}")
            known = {title: row[key] for key, title in _SHOWN.items() if row[key] not in ("", "0")}
            out.table([(f"  {title}", value) for title, value in known.items()])

    def as_json(self) -> Sequence[dict[str, str]]:
        return self.rows


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
