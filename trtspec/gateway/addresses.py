"""Says who can reach a server's address, and how clients and URLs write it."""

from __future__ import annotations

LOOPBACK = "127.0.0.1"


def in_url(host: str) -> str:
    """Returns the host as URLs write it."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Says whether only this machine can reach a server that listens on the host."""
    return host in ("localhost", "::1") or host.startswith("127.")


def client_host(host: str) -> str:
    """Returns the host at which a client on this machine finds a server that listens on `host`."""
    return {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)  # noqa: S104
