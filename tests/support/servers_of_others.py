"""The backends that are servers of others, with all that such a backend says of itself, and their builds."""

from __future__ import annotations

from pathlib import Path

from trtspec.backends.launch import ServerLaunch
from trtspec.backends.shared.servers import ServerBackend, launch_steps
from trtspec.backends.table import backend_named, backends

SERVERS = tuple(backend.name for backend in backends() if not backend.builds_engines)


def server_named(name: str) -> ServerBackend:
    found = backend_named(name)
    assert isinstance(found, ServerBackend)
    return found


def write_launch(launch: ServerLaunch, folder: Path) -> None:
    """Writes a launch and its files into a build's folder, by the steps of a build."""
    for step in launch_steps(launch):
        assert step.output
        step.action(folder / step.output, lambda *_: None)
