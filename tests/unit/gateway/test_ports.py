"""Ports that cannot be had are named before anything starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from trtspec.base.errors import UnavailableError
from trtspec.gateway.ports import Ports, check_free, free_ports

LOOPBACK = "127.0.0.1"


@pytest.fixture
def free() -> list[int]:
    return free_ports(3)


def test_free_ports_are_not_given_to_connections(free: list[int]) -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert len(set(free)) == 3
    assert not any(first <= port <= last for port in free)


def test_where_connections_get_all_ports_a_free_one_is_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr("trtspec.gateway.ports._GIVEN_BY_KERNEL", tmp_path / "range")
    check_free(LOOPBACK, Ports(*free_ports(3)))


def test_free_ports_stay_free(free: list[int]) -> None:
    check_free(LOOPBACK, Ports(*free))
    check_free(LOOPBACK, Ports(*free))


@pytest.mark.parametrize("index", range(3))
def test_a_taken_port_is_named_with_its_option(free: list[int], index: int) -> None:
    option = ("--http-port", "--grpc-port", "--metrics-port")[index]
    taken = socket.create_server((LOOPBACK, free[index]))
    with taken, pytest.raises(UnavailableError, match=f"{free[index]}: the port is in use") as caught:
        check_free(LOOPBACK, Ports(*free))
    assert option in str(caught.value.repair)


def test_the_same_port_twice_is_taken(free: list[int]) -> None:
    with pytest.raises(UnavailableError, match="the port is in use") as caught:
        check_free(LOOPBACK, Ports(free[0], free[0], free[1]))
    assert "--grpc-port" in str(caught.value.repair)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_of_somebody_else_is_refused(free: list[int], host: str) -> None:
    with pytest.raises(UnavailableError, match="not an address"):
        check_free(host, Ports(*free))
