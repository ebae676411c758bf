"""The requests that an HTTP server in front of a model refuses itself, counted for Prometheus."""

from __future__ import annotations

from enum import Enum

NAME = "trtspec:front_refusals"
_MEANING = "Requests refused in front of the model, by reason"


class Refusal(Enum):
    """The reasons why a request does not reach the model; each value is the metric's label `reason`."""

    NOT_READY = "not_ready"
    DRAINING = "draining"
    BODY_TOO_LARGE = "body_too_large"
    BODY_TOO_SLOW = "body_too_slow"
    TOO_MANY_BODIES = "too_many_bodies"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    TOO_MANY_REQUESTS = "too_many_requests"
    UNAUTHORIZED = "unauthorized"
    INVALID_REQUEST = "invalid_request"


OF_BODIES = {408: Refusal.BODY_TOO_SLOW, 413: Refusal.BODY_TOO_LARGE, 503: Refusal.TOO_MANY_BODIES}
"""The refusals of bodies, by their HTTP status."""


def while_shut(state: str) -> Refusal:
    """Returns the refusal of a server that is shut; its `state` says why, "stopping" where it drains."""
    return Refusal.DRAINING if state == "stopping" else Refusal.NOT_READY


class Refusals:
    """Counts the refusals of one API; a request that reaches the model is counted there."""

    def __init__(self, api: str, model: str) -> None:
        self._api, self._model = api, model
        self._counts = dict.fromkeys(Refusal, 0)

    def add(self, refusal: Refusal) -> None:
        self._counts[refusal] += 1

    def text(self) -> str:
        """Returns the counters in Prometheus's text format, those of 0 too, so that rates have a start."""
        lines = []
        # For one release by the old name too.
        for name in (NAME, f"{NAME}_total"):
            lines += [f"# HELP {name} {_MEANING}", f"# TYPE {name} counter"]
            for refusal, number in self._counts.items():
                labels = f'api="{self._api}",model="{self._model}",reason="{refusal.value}"'
                lines.append(f"{name}{{{labels}}} {number}")
        return "\n".join(lines) + "\n"
