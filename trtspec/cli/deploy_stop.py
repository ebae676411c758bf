"""`trtspec deploy stop`: ends what runs in docker."""

from __future__ import annotations

from typing import Annotated

import typer

from trtspec.errors import UnavailableError
from trtspec.terminal.output import out

EXAMPLES = ("trtspec deploy stop", "trtspec deploy stop trtspec-tiny-0a1b2c3d")


def deploy_stop(
    name: Annotated[
        str | None, typer.Argument(help="As trtspec deploy status shows it.", show_default="the only one")
    ] = None,
) -> None:
    """Stop a server that deploy --docker has started.

    Requests in flight have the seconds to end that deploy --grace gave them.
    """
    from trtspec.deploy.deployed import find_deployed, stop

    found = {deployed.state.name: deployed for deployed in find_deployed()}
    if name is None and len(found) == 1:
        (name,) = found
    if name not in found:
        repair = f"deployed are {', '.join(sorted(found))}" if found else None
        if name is None:
            problem = "which one?" if found else "nothing is deployed in docker here"
            raise UnavailableError("deploy stop", problem, repair)
        raise UnavailableError(name, "is not deployed in docker here", repair)
    stop(found[name])
    out.status(f"{name}: stopped")
