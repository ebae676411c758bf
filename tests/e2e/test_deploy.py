"""`trtspec deploy`: how it starts, stops and fails."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from itertools import islice
from pathlib import Path

import pytest

from tests.e2e.conftest import (
    BLS,
    DEADLINE_S,
    ENDLESS,
    IN_PROCESS,
    RECIPE,
    TRTSPEC,
    Deploy,
    Deployer,
    Until,
    refused,
)


@IN_PROCESS
@pytest.mark.sweep
def test_two_servers_at_once_one_of_a_build_that_was_moved(
    server: Deploy, deployer: Deployer, build_copy: Path, until: Until
) -> None:
    other = deployer(build_copy)
    until(lambda: other.is_ready, "the other server ready")

    assert other.generate("import ", max_tokens=8) == server.generate("import ", max_tokens=8)

    assert other.stop(signal.SIGINT) == 0
    assert other.said.read_text().splitlines()[-1] == "stopped"
    assert not other.server_pids()
    assert server.generate("import ", max_tokens=2)
    # Serving leaves the build as it was.
    changed = subprocess.run(
        ["diff", "-rq", "--exclude=*.log", _build_of(server), build_copy],
        capture_output=True,
        text=True,
    )
    assert changed.stdout == ""


@IN_PROCESS
def test_the_repository_carries_the_code_that_serves(
    deployer: Deployer, build_copy: Path, until: Until
) -> None:
    edge = build_copy / "model_repository" / "speculative_llm" / "1" / "trtspec" / "serving" / "triton"
    responses = edge / "responses.py"
    responses.write_text(responses.read_text().replace("chunk.text.encode()", "b'from the copy'"))

    deploy = deployer(build_copy)
    until(lambda: deploy.is_ready, "the server ready")

    assert deploy.generate("import ", max_tokens=2) == "from the copy"


@IN_PROCESS
def test_requests_in_flight_end_before_the_server_does(
    deployer: Deployer, build_copy: Path, until: Until
) -> None:
    deploy = deployer(build_copy, "--grace", "60")
    until(lambda: deploy.is_ready, "the server ready")
    client = deploy.client()
    endless = {"text_input": "class A:\n", "max_tokens": ENDLESS, "end_id": -1, "stream": True}
    responses = client.generate(endless)
    next(responses)

    deploy.process.send_signal(signal.SIGTERM)

    def is_refused() -> bool:
        # The model may refuse one before the front does.
        status, _ = deploy.post({"text_input": "a", "max_tokens": 1})
        return status == 503 and deploy.metric("front_refusals", reason="draining") > 0

    until(is_refused, "no more requests")
    texts = [response["text_output"] for response in islice(responses, 200)]
    assert len("".join(texts)) > 200
    assert deploy.process.poll() is None
    responses.close()
    client.close()

    assert deploy.ended() == 0
    assert not deploy.server_pids()
    assert [*Path("/tmp").glob(f"folder*/1/*{deploy.process.pid}")] == []


@IN_PROCESS
def test_a_killed_deploy_command_leaves_no_server_process(
    deployer: Deployer, build_copy: Path, until: Until
) -> None:
    deploy = deployer(build_copy)
    until(lambda: deploy.is_ready, "the server ready")
    assert len(deploy.server_pids()) > 1

    deploy.process.kill()

    until(lambda: not deploy.server_pids(), "the end of the server and of its children")


@IN_PROCESS
def test_a_server_that_dies_is_an_error_with_its_last_lines(
    deployer: Deployer, build_copy: Path, until: Until
) -> None:
    deploy = deployer(build_copy)
    until(lambda: deploy.is_ready, "the server ready")

    os.kill(min(deploy.server_pids()), signal.SIGKILL)

    assert deploy.ended() == 1
    said = deploy.said.read_text()
    assert "error: tritonserver: was killed by SIGKILL" in said
    assert "Started HTTPService" in said
    until(lambda: not deploy.server_pids(), "the end of the server's children")


@IN_PROCESS
def test_an_interrupt_before_the_server_is_ready_ends_deploy_with_130(
    deployer: Deployer, build_copy: Path, until: Until
) -> None:
    deploy = deployer(build_copy)
    until(lambda: deploy.is_ready or deploy.server_pids(), "a tritonserver")

    assert deploy.stop(signal.SIGINT) == 130
    assert not deploy.server_pids()


@IN_PROCESS
def test_a_taken_port_is_an_error_before_anything_starts(build_copy: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(build_copy, "--grpc-port", str(port))

    assert f"error: 127.0.0.1:{port}: the port is in use" in said
    assert "--grpc-port" in said
    assert not (build_copy / "tritonserver.log").exists()


def test_deploy_without_a_build_names_the_build_command(tmp_path: Path) -> None:
    said = refused(tmp_path / "nothing")

    assert "there is no build here" in said
    assert "trtspec build" in said


@IN_PROCESS
def test_a_path_that_the_python_backend_would_break_on_is_refused(build_copy: Path) -> None:
    said = refused(build_copy.rename(build_copy.with_name("my build")))

    assert "my build/model_repository: Triton cannot serve from a path with special" in said


@BLS
def test_an_engine_that_does_not_load_is_named(deployer: Deployer, build_copy: Path) -> None:
    (build_copy / "target" / "engine" / "rank0.safetensors").write_bytes(b"broken")

    deploy = deployer(build_copy)

    assert deploy.ended() == 1
    said = deploy.said.read_text()
    (error,) = [
        line for line in said.splitlines() if line.startswith("error: speculative_llm: did not load: ")
    ]
    assert f"{build_copy}/target/engine/rank0.safetensors: " in error
    assert "\\n" not in error
    assert "Traceback" not in said
    assert not deploy.server_pids()


def _build_of(server: Deploy) -> str:
    words = server.process.args
    assert isinstance(words, list)
    return str(words[words.index("--output") + 1])


@IN_PROCESS
def test_too_few_open_files_are_an_error_before_anything_starts(build_copy: Path) -> None:
    """Triton itself was not ready for as long as it had, and said only that accept() fails."""
    words = [TRTSPEC, "deploy", RECIPE, "--output", build_copy]
    limited = ["bash", "-c", 'ulimit -n 64; exec "$@"', "bash", *map(str, words)]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert "open files: at most 64 may be open here (ulimit -Hn), and a server needs 288" in done.stderr
    assert not list(build_copy.glob("*.log"))
