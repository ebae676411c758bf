"""Ports that cannot be had are named before anything starts, and reserved ones are nobody else's."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from trtspec.base.errors import UnavailableError
from trtspec.gateway import ports
from trtspec.gateway.ports import check_free, reserved_ports

LOOPBACK = "127.0.0.1"

# Reserves ports of a narrow range again and again, and listens to each as the strictest server would.
USER = """
import socket, sys
from pathlib import Path
from trtspec.gateway import ports

ports._GIVEN_BY_KERNEL = Path(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with ports.reserved_ports(3) as reserved:
        listeners = [socket.socket() for _ in reserved]
        for listener, port in zip(listeners, reserved):
            listener.bind(("127.0.0.1", port))
            listener.listen()
        for listener in listeners:
            listener.close()
"""


def named(ports: list[int]) -> dict[str, int]:
    return dict(zip(("http", "grpc", "metrics"), ports, strict=True))


@pytest.fixture
def free() -> Iterator[list[int]]:
    with reserved_ports(3) as reserved:
        yield reserved


@pytest.fixture
def narrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Says that the kernel gives connections every port but these twenty."""
    file = tmp_path / "range"
    file.write_text("20020\t65535\n")
    monkeypatch.setattr(ports, "_GIVEN_BY_KERNEL", file)
    return file


def test_reserved_ports_are_not_given_to_connections(free: list[int]) -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert len(set(free)) == 3
    assert not any(first <= port <= last for port in free)


def test_where_connections_get_all_ports_a_reserved_one_is_one_of_them(narrow: Path) -> None:
    narrow.write_text("1024\t65535\n")
    with reserved_ports(3) as reserved:
        check_free(LOOPBACK, named(reserved))


def test_processes_that_reserve_at_once_never_meet_at_a_port(narrow: Path) -> None:
    users = [
        subprocess.Popen([sys.executable, "-c", USER, narrow, "300"], stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [user.communicate()[1] for user in users] == [""] * 4


def test_a_port_is_reserved_once_until_its_block_ends(narrow: Path) -> None:
    with reserved_ports(8) as some, reserved_ports(8) as others:
        assert len({*some, *others}) == 16
        with pytest.raises(UnavailableError, match="no port is free"), reserved_ports(8):
            pass
    with reserved_ports(8):
        pass


def test_ports_that_somebody_listens_to_are_not_reserved(narrow: Path) -> None:
    with ExitStack() as stack:
        reserved = stack.enter_context(reserved_ports(3))
        taken = [stack.enter_context(socket.create_server(("", port))).getsockname()[1] for port in reserved]
        for _ in range(20):
            with reserved_ports(1) as (other,):
                assert other not in taken


def test_reserved_ports_can_be_listened_to(free: list[int]) -> None:
    check_free(LOOPBACK, named(free))
    check_free(LOOPBACK, named(free))


@pytest.mark.parametrize("index", range(3))
def test_a_taken_port_is_named_with_its_option(free: list[int], index: int) -> None:
    option = ("--http-port", "--grpc-port", "--metrics-port")[index]
    taken = socket.create_server((LOOPBACK, free[index]))
    with taken, pytest.raises(UnavailableError, match=f"{free[index]}: the port is in use") as caught:
        check_free(LOOPBACK, named(free))
    assert option in str(caught.value.repair)


def test_one_error_names_all_ports_in_use(free: list[int]) -> None:
    with ExitStack() as stack:
        for port in free[:2]:
            stack.enter_context(socket.create_server((LOOPBACK, port)))
        with pytest.raises(UnavailableError, match="the ports are in use") as caught:
            check_free(LOOPBACK, named(free))
    assert caught.value.subject == f"{LOOPBACK}:{free[0]}, {LOOPBACK}:{free[1]}"
    assert "--port any" in str(caught.value.repair)


def test_the_same_port_twice_is_taken(free: list[int]) -> None:
    with pytest.raises(UnavailableError, match="the port is in use") as caught:
        check_free(LOOPBACK, named([free[0], free[0], free[1]]))
    assert "--grpc-port" in str(caught.value.repair)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_of_somebody_else_is_refused(free: list[int], host: str) -> None:
    with pytest.raises(UnavailableError, match="not an address"):
        check_free(host, named(free))
