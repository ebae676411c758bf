"""`trtspec deploy status`: what runs in docker."""

from __future__ import annotations

from trtspec.terminal.options import JsonOption
from trtspec.terminal.output import out

EXAMPLES = ("trtspec deploy status", "trtspec deploy status --json")


def deploy_status(json: JsonOption = False) -> None:
    """Show the servers that deploy --docker has started."""
    from trtspec.deploy.deployed import find_deployed
    from trtspec.deploy.openai import serve_line

    found = [(deployed, deployed.lacks_api) for deployed in find_deployed()]
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
        out.status("nothing is deployed in docker here")
    for deployed, lacks_api in found:
        if lacks_api:
            name, line = deployed.state.name, serve_line(deployed.deployment)
            out.warning(f"OpenAI's API of {name} is not running, as after a restart of this machine")
            out.hint(line)
