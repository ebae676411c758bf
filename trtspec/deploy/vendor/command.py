"""The command line that starts somebody else's server; pure but for the search on PATH."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePath

from trtspec.backends.servers.launch import ServerLaunch
from trtspec.backends.table import backend_named
from trtspec.base.errors import UnavailableError

_BUILD = "{build}"


def options(launch: ServerLaunch, build: PurePath, host: str, port: int, grace_s: float) -> tuple[str, ...]:
    """Returns the server's options, of which those of the build name the folder of its files."""
    drain = backend_named(launch.backend).drain_option
    own = (argument.replace(_BUILD, str(build)) for argument in launch.arguments)
    waits = (drain, f"{max(grace_s, 1):.0f}") if drain else ()
    return (*own, *waits, launch.host_option, host, launch.port_option, str(port))


def program(launch: ServerLaunch, name: str, python: Path | None) -> tuple[str, ...]:
    """Returns what stands before the options on this machine: the module of a Python, or a program of PATH.

    Raises `UnavailableError`, which calls the server `name`, where neither is there.
    """
    if python is not None:
        if shutil.which(python) is None:
            raise UnavailableError(python, "is no program", f"name the Python of {name}")
        # The server runs in the build's folder; a name alone is one of PATH.
        named = python if python.parent == Path() else python.absolute()
        return (str(named), "-m", launch.module, *launch.module_words)
    if shutil.which(launch.program[0]) is None:
        repair = f"install {name} {launch.release} in an environment, and name its Python:"
        in_image = "trtspec deploy RECIPE --container serves it in the vendor's image"
        raise UnavailableError(launch.program[0], "is not on PATH", f"{repair} --python PATH; or {in_image}")
    return launch.program
