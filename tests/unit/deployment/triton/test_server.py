"""A running Triton, and a start of it that leads nowhere."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.e2e.conftest import wait_until
from tests.support.ports import free_port, free_ports
from trtspec.base.errors import ServerError, StuckError
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.triton import server as triton_server
from trtspec.deployment.triton.server import Stubs, TritonServer
from trtspec.gateway.ports import Ports

LOADING = "E1121 07:30:00.1 1 model_lifecycle.cc:669] \"failed to load 'pair' version 1: Internal: {}\"\n"
TAKEN = (
    'E1123 20:34:49.5 1 main.cc:257] "failed to start {} service: Unavailable - '
    "Socket '127.0.0.1:44705' already in use \"\n"
)
DRIVER = "CUDA driver version is insufficient for CUDA runtime version"


class Ended:
    def __init__(self, status: int | None) -> None:
        self._status = status

    def poll(self) -> int | None:
        return self._status

    def stop(self, seconds: float) -> None:
        raise AssertionError


class Losing(Stubs):
    """A model of the server has lost its process."""

    def __init__(self) -> None:
        super().__init__(0)

    def lost(self) -> int:
        return -11


def triton_of(deployment: Deployment, status: int | None, stubs: Stubs | None = None) -> TritonServer:
    def drain() -> None:
        raise AssertionError

    return TritonServer(deployment, Ended(status), drain, stubs=stubs)


@pytest.mark.parametrize(
    ("status", "log", "problem", "repair"),
    [
        (1, LOADING.format("no such file"), "pair: did not load: no such file", "its log is"),
        (
            1,
            LOADING.format("deserializeCudaEngine: Version tag does not match. Note: Current Version: 239"),
            "did not load: deserializeCudaEngine: Version tag",
            "trtspec build --container",
        ),
        (
            1,
            LOADING.format("unable to find backend library for backend 'tensorrtllm', try specifying"),
            "unable to find backend library",
            "trtspec deploy --container",
        ),
        (
            1,
            "[TensorRT-LLM][ERROR] The engine plan file is generated on an incompatible device, "
            "expecting compute 9.0 got compute 8.9, please rebuild.\n",
            "ended with status 1: an engine was built for compute capability 9.0, but this GPU has 8.9",
            "build it again",
        ),
        (-9, "", "tritonserver: was killed by SIGKILL", "its log is"),
        # The other processes end with the server, and their watchdogs may say so.
        (
            -9,
            "trtspec: draft was killed by SIGKILL, so this server ends\n"
            "trtspec: pair ended with status 1, so this server ends\n",
            "draft: was killed by SIGKILL",
            "its log is",
        ),
        # A warning is no cause: Triton says this on every machine without a GPU.
        (-9, f"W1121 07:30:00 1 pinned.cc:1] {DRIVER}\n", "was killed by SIGKILL", "its log is"),
        (1, f"E1121 07:30:00 1 main.cc:1] {DRIVER}\n", "driver does not run", "newer driver"),
    ],
)
def test_why_it_ended(tmp_path: Path, status: int, log: str, problem: str, repair: str) -> None:
    deployment = Deployment("x", tmp_path, "pair")
    deployment.log.write_text("E1121 07:30:00 1 main.cc:1] CUDA out of memory, of the server before\n")
    server = triton_of(deployment, status)
    with deployment.log.open("a") as file:
        file.write(log)
    with pytest.raises(ServerError) as caught:
        server.check_running()
    assert problem in str(caught.value)
    assert repair in str(caught.value.repair)


def test_a_start_that_triton_breaks_off_may_be_tried_again(tmp_path: Path) -> None:
    deployment = Deployment("x", tmp_path, "pair")
    deployment.log.write_text("")
    server = triton_of(deployment, -6)
    deployment.log.write_text(
        "terminate called after throwing an instance of 'boost::interprocess::lock_exception'\n"
        "  what():  boost::interprocess::lock_exception\n"
    )
    with pytest.raises(StuckError):
        server.is_ready()
    # One that was ready has requests, and what becomes of it is for the user to say.
    with pytest.raises(ServerError, match="was killed by SIGABRT"):
        server.check_running()


@pytest.mark.parametrize("service", ["HTTP", "GRPC", "Metrics"])
def test_a_port_that_was_taken_meanwhile_may_be_another_next_time(tmp_path: Path, service: str) -> None:
    deployment = Deployment("x", tmp_path, "pair")
    server = triton_of(deployment, 1)
    deployment.log.write_text(TAKEN.format(service))
    with pytest.raises(StuckError, match="taken its port"):
        server.check_running()


def test_a_model_that_did_not_load_is_told_though_its_process_has_ended_too(tmp_path: Path) -> None:
    """Triton may take a while to end then."""
    deployment = Deployment("x", tmp_path, "pair", ports=Ports(*free_ports()))
    server = triton_of(deployment, None, Losing())
    deployment.log.write_text(LOADING.format("no such file"))
    with pytest.raises(ServerError, match="did not load: no such file"):
        server.is_ready()


class Triton(BaseHTTPRequestHandler):
    """Answers that it is well, unless it `hangs`, and tells metrics of a model that lives or `is_dead`."""

    hangs = is_dead = False
    seconds = 0

    def do_GET(self) -> None:
        if self.hangs:
            return
        Triton.seconds += not self.is_dead
        body = f'trtspec:counted_seconds{{model="pair"}} {self.seconds}\n'.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def triton() -> Iterator[int]:
    """Its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Triton) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(("fails", "silent"), [("hangs", "tritonserver"), ("is_dead", "pair")])
def test_one_that_hangs_has_ended(
    tmp_path: Path, triton: int, monkeypatch: pytest.MonkeyPatch, fails: str, silent: str
) -> None:
    monkeypatch.setattr("trtspec.deployment.triton.server._ASK_S", 0.0)
    deployment = Deployment("x", tmp_path, "pair", ports=Ports(http=triton, metrics=triton))
    server = triton_of(deployment, None)
    server.check_running()
    assert server.is_ready()
    for missed in (0, 5, 0, 5):
        monkeypatch.setattr(Triton, fails, missed > 0)
        for _ in range(missed or 1):
            server.check_running()
    with pytest.raises(ServerError, match=f"{silent}: has not answered 6 times in a row"):
        server.check_running()


def test_a_process_that_ends_unnoticed_ends_a_server_that_was_ready(
    tmp_path: Path, triton: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.deployment.triton.server._ASK_S", 0.0)
    deployment = Deployment("x", tmp_path, "pair", ports=Ports(http=triton, metrics=triton))
    server = triton_of(deployment, None, Losing())
    assert server.is_ready()
    with pytest.raises(ServerError, match="tritonserver: a model's process was killed by SIGSEGV"):
        server.check_running()


def test_a_model_that_tells_nothing_of_its_life_is_not_held_to_it(
    tmp_path: Path, triton: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of vLLM's backend."""
    monkeypatch.setattr("trtspec.deployment.triton.server._ASK_S", 0.0)
    ports = Ports(http=triton, metrics=free_port())
    server = triton_of(Deployment("x", tmp_path, "pair", ports=ports), None)
    assert server.is_ready()
    for _ in range(20):
        server.check_running()


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
        wait_until(lambda: triton_server._stubs(server.pid), "a stub")
        wait_until(
            lambda: stuck or triton_server._children(triton_server._stubs(server.pid)[0]), "its watchdog"
        )
        found = Stubs(server.pid)
        assert not found.is_stuck()
        monkeypatch.setattr(triton_server, "_BEGINNING_S", -1)
        assert found.is_stuck() == stuck
        assert found.lost() is None
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def test_a_stub_that_has_begun_is_not_stuck_when_its_watchdog_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one whose engine does not load, while Python takes its time to end."""
    monkeypatch.setattr(triton_server, "_BEGINNING_S", -1)
    stub = "bash -c 'sleep 60 & wait; exec -a triton_python_backend_stub sleep 60'"
    server = subprocess.Popen([sys.executable, "-c", SERVER, stub], start_new_session=True)
    try:
        found = Stubs(server.pid)
        (pid,) = wait_until(lambda: triton_server._stubs(server.pid), "a stub")
        (watchdog,) = wait_until(lambda: triton_server._children(pid), "its watchdog")
        assert not found.is_stuck()
        os.kill(watchdog, 9)
        wait_until(lambda: not triton_server._children(pid), "the watchdog's end")
        assert triton_server._stubs(server.pid) == [pid]
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
        assert wait_until(found.lost, "the end of the stub") == status
        assert time.monotonic() - begin > triton_server._SEEN_S
    finally:
        os.killpg(server.pid, 9)
        server.wait()
