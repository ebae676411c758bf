"""A start that leads nowhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import wait_until
from trtspec.deployment import stubs
from trtspec.deployment.stubs import Stubs

SERVER = """
import subprocess, sys
stub = ["bash", "-c", "exec -a triton_python_backend_stub {}"]
subprocess.Popen([*stub[:2], stub[2].format(sys.argv[1])]).wait()
"""


@pytest.mark.parametrize(
    ("stub", "stuck"), [("sleep 60", True), ("bash -c 'sleep 60; true'", False)], ids=["alone", "watched"]
)
def test_a_stub_without_a_watchdog(monkeypatch: pytest.MonkeyPatch, stub: str, stuck: bool) -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER, stub], start_new_session=True)
    try:
        wait_until(lambda: stubs._stubs(server.pid), "a stub")
        wait_until(lambda: stuck or stubs._children(stubs._stubs(server.pid)[0]), "its watchdog")
        found = Stubs(server.pid)
        assert not found.is_stuck()
        monkeypatch.setattr(stubs, "_BEGINNING_S", -1)
        assert found.is_stuck() == stuck
        assert found.lost() is None
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def test_a_stub_that_has_begun_is_not_stuck_when_its_watchdog_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one whose engine does not load, while Python takes its time to end."""
    monkeypatch.setattr(stubs, "_BEGINNING_S", -1)
    stub = "bash -c 'sleep 60 & wait; exec -a triton_python_backend_stub sleep 60'"
    server = subprocess.Popen([sys.executable, "-c", SERVER, stub], start_new_session=True)
    try:
        found = Stubs(server.pid)
        (pid,) = wait_until(lambda: stubs._stubs(server.pid), "a stub")
        (watchdog,) = wait_until(lambda: stubs._children(pid), "its watchdog")
        assert not found.is_stuck()
        os.kill(watchdog, 9)
        wait_until(lambda: not stubs._children(pid), "the watchdog's end")
        assert stubs._stubs(server.pid) == [pid]
        assert not found.is_stuck()
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def test_a_server_that_is_gone_is_not_stuck() -> None:
    server = subprocess.Popen(["true"])
    server.wait()
    assert not Stubs(server.pid).is_stuck()
    assert Stubs(server.pid).lost() is None


def test_a_server_that_ends_while_its_processes_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel then answers that there is no such process, in the middle of a folder that was there."""

    def ended(_: str) -> list[str]:
        raise ProcessLookupError(3, "No such process")

    monkeypatch.setattr(os, "listdir", ended)
    assert not Stubs(os.getpid()).is_stuck()


UNASKED = """
import subprocess, sys, time
processes = [subprocess.Popen([stub]) for stub in sys.argv[1:]]
time.sleep(60)
"""


@pytest.mark.parametrize(("ends", "status"), [("exit 127", 127), ("kill -9 $$", -9)])
def test_a_stub_whose_end_the_server_does_not_see(tmp_path: Path, ends: str, status: int) -> None:
    stub = tmp_path / "triton_python_backend_stub"
    stub.write_text(f"#!/bin/sh\n{ends}\n")
    stub.chmod(0o755)
    server = subprocess.Popen([sys.executable, "-c", UNASKED, str(stub)], start_new_session=True)
    try:
        found = Stubs(server.pid)
        begin = time.monotonic()
        assert wait_until(found.lost, "the end of the stub", 10) == status
        assert time.monotonic() - begin > stubs._SEEN_S
    finally:
        os.killpg(server.pid, 9)
        server.wait()
