"""Ports for the servers of tests, reserved until the tests of this process end."""

from __future__ import annotations

from contextlib import ExitStack

from trtspec.gateway.ports import reserved_ports

_reserved = ExitStack()


def free_port() -> int:
    """Returns a port that nobody listens to."""
    (port,) = _reserved.enter_context(reserved_ports(1))
    return port


def free_ports() -> tuple[int, int, int]:
    """Returns three of them: for Triton's HTTP, gRPC and metrics."""
    return free_port(), free_port(), free_port()
