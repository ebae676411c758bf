"""The release of somebody else's server that is installed here, beside the one that a build was made for."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from trtspec.backends.backend import Backend
from trtspec.backends.servers.launch import ServerLaunch
from trtspec.pipeline.machine.installed import installed_beside, installed_in


def difference(launch: ServerLaunch, backend: Backend, started: Sequence[str]) -> str | None:
    """Returns what to say where the release that `started` runs is another than the launch's.

    None where they are the same, or where its Python does not tell. It is no error: most arguments are those
    of other releases too, and one that the server does not know it refuses itself, by name.
    """
    found = installed(backend.packages, started)
    if found in (None, launch.release):
        return None
    known = found in backend.versions
    repair = f"write release: {found}, and build again" if known else f"install {launch.release}"
    return f"{backend.title} {found} is installed, and the build is for {launch.release}: {repair}"


def installed(packages: Sequence[str], started: Sequence[str]) -> str | None:
    """Returns the version of the first of these packages that a command's Python has, without a build's mark.

    The command is a console script, or a Python with `-m`.
    """
    program, option, *_ = *started, ""
    path = shutil.which(program)
    if path is None:
        return None
    ask = installed_in if option == "-m" else installed_beside
    versions = ask(Path(path), packages)
    return next((version.partition("+")[0] for version in versions.values()), None)
