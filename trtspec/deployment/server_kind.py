"""The kinds of servers that a deployment may have: Triton, or another engine's own; pure."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.backends.table import backend_named


@dataclass(frozen=True, slots=True)
class ServerKind:
    """The facts about one kind of server."""

    name: str
    """The name of its log, and of its containers' labels: "tritonserver", or the name of a backend."""
    software: str
    """The name for people."""
    subject: str
    """The name in errors."""
    ready: tuple[str, ...]
    """The paths that all have status 200 once it takes requests; `{}` stands for the model's name."""
    models: str | None
    """The path that lists the names of its models in OpenAI's form; None where it has no such list."""
    stop_s: float
    """The seconds beyond the grace in which requests that still run are cancelled, and it ends."""
    key_variable: str | None = None
    """The variable that has the one key of its API; None where it takes none from there."""


TRITON = ServerKind(
    name="tritonserver",
    software="Triton",
    subject="tritonserver",
    ready=("/v2/health/ready", "/v2/models/{}/ready"),
    models=None,
    stop_s=5.0,
)


def kind_of(backend: str) -> ServerKind:
    """Returns the kind of a backend's own server; raises KeyError for an unknown backend."""
    found = backend_named(backend)
    return ServerKind(
        name=backend,
        software=found.title,
        subject=found.title,
        ready=("/health",),
        models="/v1/models",
        # Its engine's processes end too.
        stop_s=15.0,
        key_variable=found.key_variable,
    )
