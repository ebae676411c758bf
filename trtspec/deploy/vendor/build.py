"""A build that a server of others serves: what its `launch.json` says, and who may ask the server."""

from __future__ import annotations

from pathlib import Path

from trtspec.backends.servers.launch import FILE, ServerLaunch, read
from trtspec.backends.table import backend_named
from trtspec.base.errors import UnavailableError
from trtspec.deploy.openai import check_keys


def find_launch(build: Path) -> ServerLaunch | None:
    """Returns how a build's server is started, None for a build that Triton serves.

    Raises `UnavailableError` for a file that says nothing of use.
    """
    if not (build / FILE).is_file():
        return None
    try:
        launch = read(build)
        backend_named(launch.backend)
    except (OSError, ValueError, TypeError, KeyError) as error:
        problem = f"does not say how a server is started: {error}"
        raise UnavailableError(build / FILE, problem, "trtspec build RECIPE") from error
    return launch


def key_of(launch: ServerLaunch, file: Path) -> str:
    """Returns the key with which a server is to be asked; raises `UnavailableError` where it takes none."""
    keys, manners = check_keys(file), backend_named(launch.backend)
    if manners.key_variable is None:
        problem = f"{manners.title} takes no key but on its command line, which every user here can read"
        raise UnavailableError(file, problem, "put a proxy that asks for keys in front of it")
    if len(keys) > 1:
        problem = f"has {len(keys)} keys, and {manners.title} takes one from its environment"
        raise UnavailableError(file, problem, "write one API key")
    return keys[0]
