"""A start that leads nowhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.e2e.conftest import wait_until
from trtspec.deploy import processes
from trtspec.deploy.processes import has_stuck_stub

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
        wait_until(lambda: processes._stubs(server.pid), "a stub")
        wait_until(lambda: stuck or processes._children(processes._stubs(server.pid)[0]), "its watchdog")
        assert not has_stuck_stub(server.pid)
        monkeypatch.setattr(processes, "_BEGINNING_S", -1)
        assert has_stuck_stub(server.pid) == stuck
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def test_a_server_that_is_gone_is_not_stuck() -> None:
    server = subprocess.Popen(["true"])
    server.wait()
    assert not has_stuck_stub(server.pid)
