"""The agreement of a model with `trtspec deploy`: request ids, departures, the end of the process, the stop.

Clients name requests in a header of HTTP or gRPC, or by Triton's request id. With the options of
`HEADER_PATTERN` Triton passes headers on as parameters, in the client's spelling. Triton 2.51 does not do so
for `generate`, so the front of `trtspec deploy` adds the header to the body as its id. The `id` of a
`generate` body arrives as the request's id and as a parameter.

Triton notices that a client has left only when it sends to it, which for a response in one piece is at the
end. So the front, or OpenAI's API, names each request in a parameter, and sends the name again when the
client has left. Such names begin with a secret of the deployment; from others these parameters are unknown.
Triton also gives every error of a model the status 400, so an error of a named request begins with its own
status.

Triton's errors for a model whose process has ended, which it sends until it ends itself, have the code
INTERNAL, and over HTTP the status 400. They come from the Python backend when it passes a request on
(`ReceiveMessageFromStub` in `src/stub_launcher.cc`, `SendMessageToStub` in `src/python_be.cc`), and when a
model calls another one (`src/request_executor.cc`).

Once Triton stops, it takes no more requests, so the rounds of the bls layout, which are requests, would fail.
It also cancels no request. So the model learns of the stop before Triton does.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

STOPPING = "TRTSPEC_STOPPING"
"""The environment variable of a file that appears, with the seconds of grace, when the server is to stop."""

LOOK_S = 0.1
"""The seconds between two calls of `Stopping.look`."""


class Stopping:
    """Calls `drain` with the seconds of grace once the file appears."""

    def __init__(self, drain: Callable[[float], object]) -> None:
        self._drain = drain
        name = os.environ.get(STOPPING)
        self._file = Path(name) if name else None
        if self._file:
            # An earlier server in the same container may have left one.
            self._file.unlink(missing_ok=True)

    def look(self) -> None:
        """Checks for the file; it must be called periodically."""
        if self._file and (grace_s := _read(self._file)):
            self._file = None
            self._drain(float(grace_s))


def _read(file: Path) -> str | None:
    try:
        return file.read_text()
    except FileNotFoundError:
        return None


HEADER = "x-request-id"
HEADER_PATTERN = f"(?i)^{HEADER}$"
"""The value of `--http-header-forward-pattern` and `--grpc-header-forward-pattern`."""

ID = "id"
"""The field of a `generate` body."""
NOT_UNICODE = "the request's id, or the name or text of one of its parameters, is not valid UTF-8"
"""The message for a client whose request Triton cannot pass to Python.

It does not begin with a status as errors to the front do: the name that shows that the request came through
the front cannot be read either.
"""

LONGEST = 128
"""The largest number of characters of an id; the rest is cut off."""


def take_request_id(parameters: dict[str, Any]) -> str:
    """Removes the id from the parameters of a request, and returns it; empty if there is none."""
    found = ""
    for name in [name for name in parameters if name.lower() in (HEADER, ID)]:
        found = str(parameters.pop(name))
    return found[:LONGEST]


REQUEST, LEFT = "trtspec_request", "trtspec_left"
"""The parameters of a request: its own name, and the name of a request whose client has left."""

NAMING = "TRTSPEC_NAMING"
"""The environment variable of the secret with which these names begin; without it no request has a name."""


def read_parameters(said: str) -> dict[str, Any]:
    """Returns the parameters of a request, of several of one name the first: the front adds its own last."""
    found: dict[str, Any] = json.loads(said or "{}", object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    return found


ASKING_S = 0.003
"""The seconds in which Triton is asked about one client after the other: each takes up to 2 ms of sending."""

K = TypeVar("K")


class DepartureTurns(Generic[K]):
    """Chooses the clients to ask Triton about: those that it was asked about longest ago."""

    def __init__(self) -> None:
        self._asked: dict[K, float] = {}
        """The time of the last question about a client, or of its first appearance here."""

    def take(self, clients: Collection[K]) -> Iterator[tuple[K, bool]]:
        """Yields each client, and whether to ask Triton about it, which is false after `ASKING_S`."""
        now = time.monotonic()
        until = now + ASKING_S
        self._asked = {client: self._asked.get(client, now) for client in clients}
        for client in sorted(self._asked, key=self._asked.__getitem__):
            now = time.monotonic()
            if now < until:
                self._asked[client] = now
            yield client, now < until


class Leaving(Protocol):
    """A client that can leave."""

    is_named: bool
    """True if its request has a name."""

    def leave(self) -> None: ...


class Departures:
    """Finds clients by the names of their requests, with weak references."""

    def __init__(self) -> None:
        self._secret = os.environ.get(NAMING, "")
        self._here: WeakValueDictionary[str, Leaving] = WeakValueDictionary()

    def arrive(self, parameters: dict[str, Any], client: Leaving) -> None:
        """Removes the name of the request from the parameters, if there is one, and stores its client."""
        if self._is_name(parameters.get(REQUEST)):
            client.is_named = True
            self._here[parameters.pop(REQUEST)] = client

    def leave(self, parameters: dict[str, Any]) -> bool:
        """Says whether a request only reports a departure; if so, passes the report on to the client."""
        if not self._is_name(parameters.get(LEFT)):
            return False
        if client := self._here.get(parameters[LEFT]):
            client.leave()
        return True

    def _is_name(self, value: object) -> bool:
        return bool(self._secret) and isinstance(value, str) and value.startswith(self._secret)


_ENDED = re.compile(
    r"Stub process .*is not healthy|Failed to obtain the health mutex|Model '[^']*' is not ready"
)

ENDED = "the model's process has ended"
"""The message that a client gets instead, with the status 503."""


def tells_end(message: str) -> bool:
    """Says whether an error means that the process of a model has ended."""
    return _ENDED.search(message) is not None
