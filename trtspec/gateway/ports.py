"""The addresses and ports of servers: who can reach them, which are free, how clients and URLs write them."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtspec.base.errors import UnavailableError

LOOPBACK = "127.0.0.1"

HTTP, GRPC, METRICS, OPENAI = 8000, 8001, 8002, 9000
"""The ports that are taken by default: Triton's own, and that of OpenAI's API."""

ANY_PORT = "any"
"""The word for ports that are free."""

# The range of ip(7)'s ip_local_port_range, both ends in it.
_GIVEN_BY_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Behind those that servers are known by.
_FIRST, _LAST = 20_000, 1 << 16
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a server."""

    http: int = HTTP
    grpc: int = GRPC
    metrics: int = METRICS
    openai: int | None = None
    """The port of OpenAI's API; None where there is none."""


class PortInUseError(UnavailableError):
    """A port that somebody listens to."""


def check_free(host: str, ports: Mapping[str, int]) -> None:
    """Raises `UnavailableError` for all ports in use, each with its option's name, and for a wrong host."""
    held: list[socket.socket] = []
    taken: list[PortInUseError] = []
    try:
        for name, port in ports.items():
            try:
                held.append(listen(host, port, name))
            except PortInUseError as error:
                taken.append(error)
    finally:
        for listener in held:
            listener.close()
    if len(taken) == 1:
        raise taken[0]
    if taken:
        known = ", ".join(error.subject for error in taken)
        repair = f"--port {ANY_PORT} takes free ones; or end what listens there"
        raise UnavailableError(known, "the ports are in use", repair)


def are_free(host: str, ports: Mapping[str, int]) -> bool:
    """Says whether all of the ports can be listened on."""
    try:
        check_free(host, ports)
    except UnavailableError:
        return False
    return True


@contextmanager
def reserved_ports(number: int) -> Iterator[list[int]]:
    """Yields ports that nobody listens to, and that nobody else is given here while the block runs.

    They are none of those that the kernel gives to connections. Raises `UnavailableError` where none is free.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(_reservation()).getsockname()[1] for _ in range(number)]


def free_run(host: str, number: int) -> int:
    """Returns the first of so many ports, one after the other, that are free now; raises as
    `reserved_ports`."""
    for _ in range(_TRIES):
        with reserved_ports(1) as (first,):
            if are_free(host, {str(port): port for port in range(first, min(first + number, _LAST))}):
                return int(first)
    raise UnavailableError(host, "no ports are free", "stop servers that are not needed")


def _reservation() -> socket.socket:
    """Returns a socket of UDP, whose port says that TCP's port of the same number is reserved.

    TCP's own port is left alone, for not every server can listen where somebody else is bound.
    """
    first, last = map(int, _GIVEN_BY_KERNEL.read_text().split())
    ports = [*range(_FIRST, min(first, _LAST)), *range(max(last + 1, _FIRST), _LAST)] or range(_FIRST, _LAST)
    for port in random.sample(ports, min(len(ports), _TRIES)):
        mark = socket.socket(type=socket.SOCK_DGRAM)
        try:
            mark.bind((LOOPBACK, port))
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            mark.close()
        else:
            return mark
    raise UnavailableError(LOOPBACK, "no port is free", "stop servers that are not needed")


def in_url(host: str) -> str:
    """Returns the host as URLs write it."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Says whether only this machine can reach a server that listens on the host."""
    return host in ("localhost", "::1") or host.startswith("127.")


def client_host(host: str) -> str:
    """Returns the host at which a client on this machine finds a server that listens on `host`."""
    return {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)  # noqa: S104


def address_of(host: str) -> str:
    """Returns the numeric address of a host, which containers want; an unknown name is returned as it is.

    `check_free` refuses that.
    """
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except socket.gaierror:
        return host


def listens(host: str, port: int) -> bool:
    """Says whether somebody takes connections there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def listen(host: str, port: int, name: str = "") -> socket.socket:
    """Returns a socket that holds the port, so that two ports that are the same are noticed.

    Raises `UnavailableError` where it cannot; `name` says which of several ports it is, as its option does.
    """
    subject, repair = f"{host}:{port}", _repair(name, port)
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UnavailableError(host, f"not an address: {error.strerror}", "name one with --host") from None
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise UnavailableError(host, "not an address of this machine", "name one with --host") from None
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(subject, "the port is in use", repair) from None
        raise UnavailableError(subject, error.strerror or str(error), repair) from None
    return listener


def _repair(name: str, port: int) -> str:
    other = port + 100 if port < 65000 else port - 100
    if not name:
        return f"choose another: --port {other}"
    return f"choose another {name} port: --{name}-port {other}, or --port {ANY_PORT} for free ones"
