"""The three ports of a Triton server."""

from __future__ import annotations

import errno
import socket
from dataclasses import asdict, dataclass

from trtspec.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports, by default Triton's own."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002


def check_free(host: str, ports: Ports) -> None:
    """Raises `UnavailableError` for the first port that cannot be listened on."""
    held: list[socket.socket] = []
    try:
        for name, port in asdict(ports).items():
            held.append(_listen(host, name, port))
    finally:
        for listener in held:
            listener.close()


def address_of(host: str) -> str:
    """Returns the numeric address of a host, which docker wants; an unknown name is returned as it is.

    `check_free` refuses that.
    """
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except socket.gaierror:
        return host


def _listen(host: str, name: str, port: int) -> socket.socket:
    """Returns a socket that holds the port, so that two ports that are the same are noticed."""
    subject, repair = f"{host}:{port}", f"choose another {name} port: --{name}-port {_other(port)}"
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
        problem = "the port is in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
        raise UnavailableError(subject, problem, repair) from None
    return listener


def _other(port: int) -> int:
    return port + 100 if port < 65000 else port - 100
