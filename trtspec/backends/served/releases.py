"""Describes a release of a server that loads the models itself.

The releases of each backend are those of PyPI whose own configuration classes were read or asked.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerRelease:
    """One release of a server."""

    version: str
    image: str
    cpu_image: str | None = None
    """An image that runs without a GPU; None if there is no such image."""
    metrics_path: str | None = "/metrics"
    """The path of the server's metrics for Prometheus; None if there is none."""
