"""The departures of clients, which Triton is asked about and the front of `trtspec deploy` reports.

Triton notices that a client has left only when it sends to it, which for a response in one piece is at the
end. So the front names each request in a parameter, and sends the name again when the client has left.
Triton also gives every error of a model the status 400, so an error of a named request begins with its own
status.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

REQUEST, LEFT = "trtspec_request", "trtspec_left"
"""The parameters of a request: its own name, and the name of a request whose client has left."""
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
        self._here: WeakValueDictionary[str, Leaving] = WeakValueDictionary()

    def arrive(self, parameters: dict[str, Any], client: Leaving) -> None:
        """Removes the name of the request from the parameters, if there is one, and stores its client."""
        if name := parameters.pop(REQUEST, None):
            client.is_named = True
            self._here[name] = client

    def leave(self, parameters: dict[str, Any]) -> bool:
        """Says whether a request only reports a departure; if so, passes the report on to the client."""
        if LEFT not in parameters:
            return False
        if client := self._here.get(parameters[LEFT]):
            client.leave()
        return True
