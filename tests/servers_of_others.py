"""The backends that are servers of others, with all that such a backend says of itself."""

from __future__ import annotations

from trtspec.backends.served.backend import ServerBackend
from trtspec.backends.table import backend_named, backends

SERVERS = tuple(backend.name for backend in backends() if not backend.builds_engines)


def server_named(name: str) -> ServerBackend:
    found = backend_named(name)
    assert isinstance(found, ServerBackend)
    return found
