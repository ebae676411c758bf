"""`trtspec deploy` when a process of the server dies, hangs, or is to be started again."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import (
    BLS,
    DEADLINE_S,
    ENDLESS,
    IN_PROCESS,
    LAYOUTS,
    ONLY_IN_PROCESS,
    Deploy,
    Deployer,
    Until,
    at_work,
)
from tests.e2e.openai_requests import GOOD, ask
from tests.support.processes import command_line, command_lines
from trtspec.base.errors import ServerError
from trtspec.deployment.triton.install import find_wheel

LONG = {"text_input": "class A:\n", "max_tokens": ENDLESS, "num_draft_tokens": 1, "end_id": -1}


def engine_processes(deploy: Deploy) -> dict[str, int]:
    """The processes of Python models, by the names of the models."""
    found = {}
    for pid in deploy.server_pids():
        words = command_line(pid)
        if "triton_python_backend_stub" in words[0]:
            found[Path(words[1]).parents[1].name] = pid
    return found


def target_process(deploy: Deploy) -> int:
    processes = engine_processes(deploy)
    return processes.get("tensorrt_llm") or processes["speculative_llm"]


class InFlight:
    """A stream over gRPC, one over HTTP and an answer in one piece, as they end."""

    def __init__(self, deploy: Deploy) -> None:
        self._deploy = deploy
        self.ends: dict[str, str] = {}
        works: dict[str, Callable[[], str]] = {
            "grpc": self._grpc,
            "stream": self._stream,
            "plain": self._plain,
        }
        self._threads = [threading.Thread(target=self._run, args=item) for item in works.items()]
        for thread in self._threads:
            thread.start()

    def wait(self) -> dict[str, str]:
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), f"only {self.ends} have ended"
        return self.ends

    def _run(self, name: str, work: Callable[[], str]) -> None:
        self.ends[name] = work()

    def _grpc(self) -> str:
        client = self._deploy.client()
        try:
            return f"{len(list(client.generate({**LONG, 'stream': True})))} responses"
        except ServerError as error:
            return f"error: {error}"
        finally:
            client.close()

    def _stream(self) -> str:
        _, events = self._deploy.post({**LONG, "stream": True}, "generate_stream")
        return f"error: {events[-1]['error']}" if "error" in events[-1] else f"{len(events)} events"

    def _plain(self) -> str:
        status, answer = self._deploy.post(LONG)
        return f"error: {answer['error']}" if status != 200 else "text"


def refusal(deploy: Deploy) -> str:
    """What a new request over gRPC hears."""
    client = deploy.client()
    try:
        return str(list(client.generate({"text_input": "a", "max_tokens": 2})))
    except ServerError as error:
        return str(error)
    finally:
        client.close()


def started(deployer: Deployer, build: Path, until: Until, *options: str) -> Deploy:
    deploy = deployer(build, *options)
    until(lambda: deploy.is_ready, "the server ready")
    return deploy


DEATHS = [(signal.SIGKILL, "was killed by SIGKILL"), (signal.SIGSTOP, "was stopped for 3 s")]


@pytest.mark.parametrize(
    ("tiny_recipe", "number", "how"),
    [
        pytest.param(layout, *death, marks=[] if one == other == 0 else pytest.mark.sweep)
        for one, layout in enumerate(LAYOUTS)
        for other, death in enumerate(DEATHS)
    ],
    indirect=["tiny_recipe"],
    scope="session",
)
def test_the_engines_process_dies(
    deployer: Deployer, build_copy: Path, until: Until, number: signal.Signals, how: str
) -> None:
    deploy = started(deployer, build_copy, until)
    in_flight = InFlight(deploy)
    until(lambda: deploy.metric("num_requests_running") == 3, "three requests running")

    os.kill(target_process(deploy), number)

    ends = in_flight.wait()
    assert all(end.startswith("error: ") for end in ends.values()), ends
    assert deploy.ended() == 1
    said = deploy.said.read_text()
    assert f": {how}\n" in said
    assert "error: tensorrt_llm: " in said or "error: speculative_llm: " in said
    until(lambda: not deploy.server_pids(), "the end of the server's children")
    assert not list(Path("/dev/shm").glob(f"trtspec_{deploy.process.pid}_*"))


def watchdogs(pid: int) -> set[int]:
    """The watchdogs of a model's process that run."""
    children = {
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    }
    return {child for child in children if any(word.endswith("watching.py") for word in command_line(child))}


@pytest.mark.sweep
@IN_PROCESS
def test_a_watchdog_that_dies_alone_is_replaced(deployer: Deployer, build_copy: Path, until: Until) -> None:
    deploy = started(deployer, build_copy, until)
    model = target_process(deploy)
    (first,) = watchdogs(model)

    os.kill(first, signal.SIGKILL)

    until(lambda: watchdogs(model) - {first}, "another watchdog")
    os.kill(model, signal.SIGKILL)
    assert deploy.ended() == 1
    assert ": was killed by SIGKILL\n" in deploy.said.read_text()


@pytest.mark.sweep
@BLS
def test_an_engine_that_dies_unwatched_is_noticed(deployer: Deployer, build_copy: Path, until: Until) -> None:
    deploy = started(deployer, build_copy, until)
    engine = target_process(deploy)
    os.kill(watchdogs(engine).pop(), signal.SIGSTOP)
    os.kill(engine, signal.SIGKILL)

    assert deploy.ended() == 1
    assert "error: tritonserver: a model's process was killed by SIGKILL" in deploy.said.read_text()
    until(lambda: not deploy.server_pids(), "the end of the server's children")


@pytest.mark.sweep
@ONLY_IN_PROCESS
def test_a_model_that_is_stopped_unwatched_is_noticed(
    deployer: Deployer, build_copy: Path, until: Until
) -> None:
    deploy = started(deployer, build_copy, until)
    model = target_process(deploy)
    for process in (watchdogs(model).pop(), model):
        os.kill(process, signal.SIGSTOP)

    assert deploy.ended() == 1
    assert "error: speculative_llm: has not answered 6 times in a row" in deploy.said.read_text()
    until(lambda: not deploy.server_pids(), "the end of the server's children")


@IN_PROCESS
def test_a_model_whose_process_cannot_begin_is_told_at_once(
    deployer: Deployer, build_copy: Path, tmp_path: Path
) -> None:
    """Triton itself would wait as long as for a model that loads, five minutes."""
    backends = find_wheel().backends
    assert backends
    broken = tmp_path / "triton-backends" / backends.name
    shutil.copytree(backends, broken)
    said = "error while loading shared libraries: libpython3.so: cannot open shared object file"
    stub = broken / "python" / "triton_python_backend_stub"
    stub.write_text(f"#!/bin/sh\necho $0: {said} >&2\nexit 127\n")

    deploy = deployer(build_copy, environment={**os.environ, "TRTSPEC_CACHE": str(tmp_path)})

    assert deploy.ended() == 1
    lacks = "Triton's Python backend lacks libpython3.so"
    how = f"a model's process ended with status 127 before it started: {lacks}"
    assert f"error: tritonserver: {how}\n" in deploy.said.read_text()
    assert not deploy.server_pids()


@pytest.mark.sweep
@ONLY_IN_PROCESS
def test_a_request_that_finds_the_models_process_dead_may_try_again(
    deployer: Deployer, build_copy: Path, until: Until
) -> None:
    """Triton lives on for a moment, and calls the death an error of the request."""
    deploy = deployer(build_copy, with_api=True)
    until(lambda: deploy.is_ready, "the server ready")
    model = target_process(deploy)
    watchdogs = [
        pid for pid, line in command_lines() if "watching.py" in " ".join(line) and f"{model}" in line
    ]
    for pid in watchdogs:
        os.kill(pid, signal.SIGSTOP)
    os.kill(model, signal.SIGKILL)

    asked = {"text_input": "a", "max_tokens": 2}
    bodies: list[tuple[int, str, dict[str, Any]]] = [
        (deploy.ports[0], f"/v2/models/{deploy.model}/generate", asked),
        (deploy.ports[0], f"/v2/models/{deploy.model}/generate_stream", asked),
        (deploy.api_port, "/v1/completions", GOOD),
    ]
    for port, path, body in bodies:
        status, headers, answer = ask(port, path, json.dumps(body).encode())
        assert status == 503, answer
        assert headers["retry-after"] == "1"
        assert b"has ended" in answer
    for pid in watchdogs:
        os.kill(pid, signal.SIGCONT)
    assert deploy.ended() == 1


@pytest.mark.sweep
@BLS
def test_deploy_with_restart_starts_a_killed_server_again(
    deployer: Deployer, build_copy: Path, until: Until
) -> None:
    deploy = started(deployer, build_copy, until, "--restart")
    expected = deploy.generate("import ", max_tokens=8)
    first = deploy.server_pids()

    os.kill(target_process(deploy), signal.SIGKILL)

    status = until(lambda: (seen := deploy.request("GET", "/v2/health/ready")[0]) != 200 and seen, "unready")
    assert status == 503
    assert deploy.post(LONG)[0] == 503
    until(lambda: deploy.request("GET", "/v2/health/live")[0] == 503, "no word of life")
    until(lambda: deploy.request("GET", "/v2/health/ready")[0] == 200, "the server ready again")
    assert deploy.generate("import ", max_tokens=8) == expected
    assert not first & deploy.server_pids()
    assert "was killed by SIGKILL; starting again in 1 s" in deploy.said.read_text()
    # What the first one said is still there.
    assert "so this server ends" in (build_copy / "tritonserver.log").read_text()
    assert deploy.stop() == 0


@pytest.mark.sweep
@IN_PROCESS
def test_requests_that_outlive_the_grace_end_with_an_error(
    deployer: Deployer, build_copy: Path, until: Until
) -> None:
    deploy = started(deployer, build_copy, until, "--grace", "1")
    in_flight = InFlight(deploy)
    until(lambda: deploy.metric("num_requests_running") == 3, "three requests running")

    deploy.process.send_signal(signal.SIGTERM)

    until(lambda: deploy.request("GET", "/v2/health/ready")[0] == 503, "unready")
    status, answer = deploy.post({"text_input": "a", "max_tokens": 2})
    assert (status, answer) == (503, {"error": "the server is stopping"})
    until(lambda: "the server is stopping" in refusal(deploy), "a refusal over gRPC")
    ends = in_flight.wait()
    assert all(end.startswith("error: ") and "the server is stopping" in end for end in ends.values()), ends
    assert deploy.ended() == 0
    assert not deploy.server_pids()


@pytest.mark.sweep
@BLS
def test_regions_of_a_deploy_that_was_killed_are_removed_by_the_next(
    deployer: Deployer, build_copy: Path, until: Until
) -> None:
    first = started(deployer, build_copy, until)
    regions = lambda: list(Path("/dev/shm").glob(f"trtspec_{first.process.pid}_*"))  # noqa: E731
    assert regions()
    for pid in [*first.server_pids(), first.process.pid]:
        os.kill(pid, signal.SIGKILL)
    first.process.wait()
    until(lambda: not first.server_pids(), "the end of the server")

    started(deployer, build_copy, until)

    assert not regions()


@pytest.mark.sweep
@BLS
def test_a_deploy_that_was_killed_can_be_started_again_at_once(
    deployer: Deployer, build_copy: Path, tmp_path: Path, until: Until
) -> None:
    """Even where a client of gRPC still has an endless answer, for which Triton would wait."""
    first = started(deployer, build_copy, until)
    processes = first.server_pids()
    with at_work(first, "class A:\n"):
        first.process.kill()
        first.process.wait()
        second = deployer(build_copy, ports=first.ports)
        until(lambda: second.is_ready, "the server ready")
    assert not processes & second.server_pids()
    assert second.generate("import ", max_tokens=8)
    assert second.stop() == 0


@pytest.mark.sweep
@IN_PROCESS
def test_the_log_of_a_crash_is_kept(deployer: Deployer, build_copy: Path, until: Until) -> None:
    first = started(deployer, build_copy, until)
    os.kill(target_process(first), signal.SIGKILL)
    assert first.ended() == 1

    second = started(deployer, build_copy, until)

    assert "so this server ends" in (build_copy / "tritonserver.log.1").read_text()
    assert second.stop() == 0


@pytest.fixture
def keeps_cores() -> Iterator[None]:
    """Whoever crashes leaves a file `core` in its folder, of which the beginning is enough."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    if not before[1] or Path("/proc/sys/kernel/core_pattern").read_text() != "core\n":
        pytest.skip("this machine leaves no core files")
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.mark.sweep
@BLS
@pytest.mark.usefixtures("keeps_cores")
def test_no_process_crashes_as_it_ends(deployer: Deployer, build_copy: Path, until: Until) -> None:
    served = started(deployer, build_copy, until)
    assert served.generate("import ", max_tokens=8)
    until(lambda: served.metric("num_requests_running") == 0, "its metrics")
    assert served.stop() == 0
    (build_copy / "target" / "engine" / "rank0.safetensors").write_bytes(b"broken")
    assert deployer(build_copy).ended() == 1

    assert not list(build_copy.glob("core*"))


@IN_PROCESS
def test_control_apis_are_closed_and_secrets_stay_outside(
    deployer: Deployer, build_copy: Path, until: Until
) -> None:
    environment = {**os.environ, "HF_TOKEN": "hf_abcdefgh", "SOME_URL": "https://me:hf_abcdefgh@host/"}
    deploy = deployer(build_copy, environment=environment)
    until(lambda: deploy.is_ready, "the server ready")

    for pid in deploy.server_pids():
        assert "hf_abcdefgh" not in Path(f"/proc/{pid}/environ").read_text()
    for path in ("/v2/repository/index", "/v2/systemsharedmemory/status", "/v2/logging", "/v2/trace/setting"):
        assert deploy.request("POST" if "index" in path else "GET", path)[0] == 403
    for path in ("/v2/models/../repository/index", "/v2/./repository/index", "//v2/repository/index"):
        assert deploy.request("POST", path)[0] in (400, 404)
    client = deploy.client()
    with pytest.raises(Exception, match="this API is closed"):
        client._triton.get_model_repository_index()
    client.close()
    assert json.loads(deploy.request("GET", f"/v2/models/{deploy.model}/config")[1])["name"] == deploy.model
    assert deploy.stop() == 0
