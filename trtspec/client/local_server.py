"""A server that `trtspec deploy` runs on this machine, and the file by which other commands find it.

The file is in `$XDG_STATE_HOME/trtspec/servers/HOST`, else below `~/.local/state`. A deploy in the foreground
holds a lock on it, so that a file whose deploy was killed is known by its free lock. Nobody holds a lock for
a container that is left running: it counts while it accepts connections.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from trtspec.base.errors import UnavailableError
from trtspec.base.files import locked, try_lock, unlock
from trtspec.client.scrape import read
from trtspec.gateway.ports import listens


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server, and the URLs at which clients on this machine find it."""

    name: str
    build: str
    """The build directory."""
    model: str
    url: str
    """The URL of the model in Triton, or of the API of another engine's server."""
    ready: str
    """The URL that answers 200 once the server accepts requests."""
    metrics: str
    grpc: str | None
    """HOST:PORT of Triton's gRPC; None for another engine's server."""
    openai: str | None
    created: str
    process: int | None = None
    """The process of deploy; None for a container that was left running."""
    log: str = ""
    """The file of the server's log."""

    @property
    def is_ready(self) -> bool:
        try:
            read(self.ready)
        except UnavailableError:
            return False
        return True

    @property
    def is_running(self) -> bool:
        """True while its deploy runs, or its container takes connections."""
        return _runs(self, self._file)

    def stop(self) -> None:
        """Ends a deploy that is a process, and waits for its end."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGTERM)
        while self.is_running:
            time.sleep(0.1)

    @property
    def _file(self) -> Path:
        return servers_folder() / f"{self.name}.json"

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Records a server in the foreground during the block, so that other commands find it.

        It serves even if the home is read-only or has no locks.
        """
        with ExitStack() as stack:
            with suppress(OSError, UnavailableError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self._file, lambda: None))
                self._write()
            yield

    def leave(self) -> None:
        """Records a server that keeps running in a container, until `forget`."""
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._write()

    def _write(self) -> None:
        self._file.write_text(json.dumps(asdict(self)), encoding="utf-8")


def find_servers() -> list[LocalServer]:
    """Returns the servers that run or start, in the order of their names; removes the files of dead ones."""
    found = []
    for file in sorted(servers_folder().glob("*.json")):
        try:
            server = LocalServer(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # It is being written or removed, or another version's.
            continue
        if _runs(server, file):
            found.append(server)
    return found


def one_address(
    address: Callable[[LocalServer], str | None], is_meant: Callable[[LocalServer], bool] = lambda _: True
) -> str | None:
    """Returns this address of the only server here that has one; None if there is none.

    Raises `UnavailableError` that lists them where there are several.
    """
    found = {server.name: at for server in find_servers() if is_meant(server) and (at := address(server))}
    if len(found) > 1:
        known = ", ".join(f"--url {at} ({name})" for name, at in found.items())
        raise UnavailableError("this machine", f"runs {len(found)} servers", f"name one: {known}")
    return next(iter(found.values()), None)


def is_starting(url: str) -> bool:
    """Says whether a deploy in the foreground starts the server at this address."""
    found = (server for server in find_servers() if url in (server.url, server.grpc, server.openai))
    return any(server.process and not server.is_ready for server in found)


def forget(name: str) -> None:
    """Removes what `leave` has written."""
    (servers_folder() / f"{name}.json").unlink(missing_ok=True)


def servers_folder() -> Path:
    """Returns the folder of this machine's files; several machines may share a home."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home, "trtspec", "servers", platform.node() or "localhost")


def _runs(server: LocalServer, file: Path) -> bool:
    if server.process is None:
        parts = urlsplit(server.ready)
        return listens(parts.hostname or "", parts.port or 0)
    try:
        free = try_lock(file)
    except (OSError, UnavailableError):
        return False
    if free is None:
        return True
    unlock(free, file)
    return False
