"""What the model and the front of `trtspec deploy` tell each other past Triton's HTTP.

Triton notices a departure only when it has something to send, which for an answer in one piece is its end.
The front names each request in a parameter, and names it again when its client has gone. And Triton gives
every error of a model the status 400, so those of a request that has a name begin with their own.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakValueDictionary

REQUEST, LEFT = "trtspec_request", "trtspec_left"
"""Parameters of a request: its own name, and the name of one whose client has left."""


class Leaving(Protocol):
    is_named: bool

    def leave(self) -> None: ...


class Departures:
    """The clients that are here, by the names of their requests; those that nobody holds are forgotten."""

    def __init__(self) -> None:
        self._here: WeakValueDictionary[str, Leaving] = WeakValueDictionary()

    def arrive(self, parameters: dict[str, Any], client: Leaving) -> None:
        """Takes the name, if there is one, out of the parameters."""
        if name := parameters.pop(REQUEST, None):
            client.is_named = True
            self._here[name] = client

    def leave(self, parameters: dict[str, Any]) -> bool:
        """Whether that is all that the request says."""
        if LEFT not in parameters:
            return False
        if client := self._here.get(parameters[LEFT]):
            client.leave()
        return True
