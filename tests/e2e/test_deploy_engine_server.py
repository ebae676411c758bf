"""`trtspec deploy` of a build that another engine's server serves, with a stand-in for vLLM's."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import DEADLINE_S, RECIPE, TINY, TRTSPEC, Until
from tests.fakes.docker_daemon import DockerDaemon
from tests.fakes.gpu_machine import GpuMachine
from tests.support.command_line import trtspec
from tests.support.ports import free_port, free_ports
from tests.support.processes import command_lines
from tests.support.servers_of_others import write_launch
from trtspec.backends.launch import ServerLaunch
from trtspec.client import client as clients

ROOT = Path(__file__).parents[2]
FAKE = "tests.fakes.openai_server"
SPECULATION = '{"model": "draft", "num_speculative_tokens": 4}'


@dataclass
class Vendor:
    """A `trtspec deploy` in the foreground of its own process; what it says is in the file `said`."""

    process: subprocess.Popen[bytes]
    said: Path
    port: int

    @property
    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.said.read_text()
        return "is ready" in self.said.read_text()

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def ended(self) -> int:
        """Waits for the end of the command, and returns its exit status."""
        return self.process.wait(DEADLINE_S)

    def servers(self) -> list[str]:
        return servers(self.port)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=DEADLINE_S) as response:
            return json.load(response)

    def post(self, max_tokens: int) -> Any:
        body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": max_tokens, "stream": True}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", body)
        return urllib.request.urlopen(request, timeout=DEADLINE_S)


def servers(port: int) -> list[str]:
    """The command lines of the server on this port, and of its engine."""
    marks = (f"--port {port} ", f"--port={port} ")
    lines = (" ".join(line) for _, line in command_lines())
    return [line for line in lines if any(mark in line for mark in marks)]


@pytest.fixture(autouse=True)
def no_other_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the servers that other tests keep for a whole session."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def build(tmp_path: Path) -> Path:
    return written(tmp_path / "build")


def written(folder: Path, **environment: str) -> Path:
    """A build with a launch configuration, as `trtspec build` leaves one."""
    folder.mkdir(exist_ok=True)
    launch = ServerLaunch(
        backend="vllm",
        release="0.32.0",
        module=FAKE,
        program=("vllm", "serve"),
        arguments=(
            *("--model", str(TINY / "target"), "--served-model-name", "tiny"),
            *("--speculative-config", SPECULATION, "--max-model-len", "512"),
        ),
        image="vllm/vllm-openai:v0.32.0",
        served_model_name="tiny",
        environment={"PYTHONPATH": str(ROOT), **environment},
        models=(str(TINY / "target"), str(TINY / "draft")),
    )
    write_launch(launch, folder)
    return folder


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[Callable[..., Vendor]]:
    started: list[Vendor] = []

    def start(build: Path, *options: str) -> Vendor:
        port = free_port()
        said = tmp_path / f"deploy-{len(started)}.log"
        words = ["--output", str(build), "--python", sys.executable, "--openai-port", str(port)]
        with said.open("wb") as file:
            process = subprocess.Popen(
                [TRTSPEC, "deploy", RECIPE, *words, *options], stdout=file, stderr=subprocess.STDOUT
            )
        started.append(Vendor(process, said, port))
        return started[-1]

    yield start
    for deploy in started:
        deploy.process.kill()
        deploy.process.wait()


def test_an_engine_server_ends_running_requests_before_it_stops(
    build: Path, tmp_path: Path, vendor: Callable[..., Vendor], until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a key, which is in no command line."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    keys = tmp_path / "keys"
    keys.write_text("# of the team\nsecret-key-1\n")
    deploy = vendor(build, "--api-keys", str(keys))
    until(lambda: deploy.is_ready, "the server ready")
    said = deploy.said.read_text()
    assert f"OpenAI   http://127.0.0.1:{deploy.port}/v1\n" in said
    assert "does not have the request's temperature" in said
    told = deploy.get("/told")
    assert told["argv"] == [
        *("--model", str(TINY / "target"), "--served-model-name", "tiny"),
        *("--speculative-config", SPECULATION, "--max-model-len", "512"),
        *("--shutdown-timeout", "10", "--host", "127.0.0.1", "--port", str(deploy.port)),
    ]
    assert told["folder"] == str(build)
    assert "HF_TOKEN" not in told["environment"], "folders are loaded, so nobody is asked on the Hub"
    assert told["environment"]["VLLM_API_KEY"] == "secret-key-1"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        deploy.get("/v1/models")
    assert len(deploy.servers()) == 2
    assert "secret-key-1" not in "".join(deploy.servers())
    answer = deploy.post(100)
    answer.readline()

    deploy.process.send_signal(signal.SIGTERM)

    assert answer.read().decode().count('"text"') >= 98, "a request in flight ends first"
    assert deploy.ended() == 0
    assert deploy.said.read_text().splitlines()[-1] == "stopped"
    assert not deploy.servers()
    assert "INFO loading" in (build / "vllm.log").read_text()
    assert sorted(file.name for file in build.iterdir()) == ["launch.json", "vllm.log"]


@pytest.mark.parametrize(
    ("how", "seconds", "said"),
    [
        ("crashes", DEADLINE_S, "vLLM: ended with status 1: the GPU has too little free memory"),
        (
            "lacks",
            DEADLINE_S,
            "vLLM: ended with status 1: its Python lacks arctic-inference==0.1.1, which suffix",
        ),
        ("never", 2, "vLLM: not ready after 2 s"),
    ],
)
def test_one_that_does_not_become_ready(tmp_path: Path, how: str, seconds: float, said: str) -> None:
    build, port = written(tmp_path / "build", FAKE_SERVER=how), free_port()
    words = ("--python", sys.executable, "--openai-port", port, "--timeout", seconds)
    done = trtspec("deploy", RECIPE, "--output", build, *words)
    assert done.returncode == 1
    assert said in " ".join(done.stderr.split())
    assert not servers(port)


def test_one_that_dies_is_started_again(tmp_path: Path, vendor: Callable[..., Vendor], until: Until) -> None:
    deploy = vendor(written(tmp_path / "build", FAKE_SERVER="dies"), "--restart")
    until(lambda: deploy.is_ready, "the server ready")
    (first, _), before = sorted(deploy.servers()), deploy.said.read_text()
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        deploy.post(1)
    until(lambda: deploy.said.read_text().count("is ready") == 2, "the server ready again")
    assert "vLLM: was killed by SIGKILL" in deploy.said.read_text().removeprefix(before)
    assert first in deploy.servers()
    assert len(deploy.servers()) == 2, "the engine of the first one is gone"
    assert deploy.process.poll() is None


@pytest.mark.usefixtures("of_another_release")
def test_another_release_is_told_and_a_python_is_found_from_where_one_stands(
    build: Path, tmp_path: Path, vendor: Callable[..., Vendor], until: Until
) -> None:
    """The server runs in the build's folder."""
    (tmp_path / "python").symlink_to(sys.executable)
    deploy = vendor(build, "--python", os.path.relpath(tmp_path / "python"))
    until(lambda: deploy.is_ready, "the server ready")
    said = "vLLM 0.33.0 is installed, but the build is for 0.32.0: write release: 0.33.0, and build again"
    assert said in " ".join(deploy.said.read_text().split())


@pytest.fixture
def of_another_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has Pythons say that vLLM is installed."""
    metadata = tmp_path / "installed/vllm-0.33.0.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")
    monkeypatch.setenv("PYTHONPATH", f"{metadata.parents[1]}:{os.environ.get('PYTHONPATH', '')}")


def test_a_killed_deploy_leaves_no_engine_server_behind(
    build: Path, vendor: Callable[..., Vendor], until: Until
) -> None:
    deploy = vendor(build)
    until(lambda: deploy.is_ready, "the server ready")
    deploy.process.kill()
    until(lambda: not deploy.servers(), "the end of the server and of its engine")


@pytest.mark.sweep
def test_one_that_does_not_end_is_killed(
    tmp_path: Path, vendor: Callable[..., Vendor], until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy = vendor(written(tmp_path / "build", FAKE_SERVER="stays"))
    until(lambda: deploy.is_ready, "the server ready")
    deploy.process.send_signal(signal.SIGTERM)
    until(lambda: "stopping" in deploy.said.read_text(), "the stop begun")
    deploy.process.send_signal(signal.SIGTERM)
    assert deploy.ended() == 130
    assert not deploy.servers()


@pytest.mark.sweep
def test_a_stop_before_it_is_ready(tmp_path: Path, vendor: Callable[..., Vendor], until: Until) -> None:
    deploy = vendor(written(tmp_path / "build", FAKE_SERVER="never"))
    until(lambda: len(deploy.servers()) == 2, "the server started")
    deploy.process.send_signal(signal.SIGINT)
    assert deploy.ended() == 130
    assert not deploy.servers()


def test_the_same_without_drafts(build: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret-key-1\n")
    words = ("--python", "python3", "--api-keys", keys, "--dry-run", "--plain")
    shown = trtspec("deploy", RECIPE, "--output", build, *words)
    assert shown.returncode == 0, shown.stderr
    target = TINY / "target"
    assert shown.stdout.replace(" \\\n   ", "") == (
        f'export VLLM_API_KEY="$(cat {keys})"\n'
        f"cd {build} && PYTHONPATH={ROOT} python3 -m {FAKE} --model {target}"
        " --served-model-name tiny --max-model-len 512"
        " --shutdown-timeout 10 --host 127.0.0.1 --port 9000\n"
    )


@pytest.mark.parametrize(
    ("options", "said", "status"),
    [
        (("--http-port", "8123"), "vllm has one port, --openai-port", 2),
        (("--no-openai",), "vllm has one port, --openai-port", 2),
        (("--python", "/no/python"), "/no/python: is no program", 1),
        ((), "vllm: is not on PATH", 1),
    ],
)
def test_deploy_refuses_options_that_an_engine_server_does_not_have(
    build: Path, tmp_path: Path, options: tuple[str, ...], said: str, status: int
) -> None:
    done = trtspec("deploy", RECIPE, "--output", build, *options, environment={"PATH": str(tmp_path)})
    assert done.returncode == status
    assert said in " ".join(done.stderr.split())


@pytest.mark.sweep
def test_two_deploys_of_a_build_have_logs_of_their_own(
    build: Path, vendor: Callable[..., Vendor], until: Until
) -> None:
    """The first one says how its own server has ended, and nothing that the other's has written."""
    first = vendor(build)
    until(lambda: first.is_ready, "the first server ready")
    second = vendor(build)
    until(lambda: second.is_ready, "the second server ready")
    with (build / "vllm-2.log").open("a") as log:
        log.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    own = [pid for pid, line in command_lines() if " ".join(line) in first.servers()]
    os.kill(min(own), signal.SIGKILL)

    assert first.ended() == 1
    said = first.said.read_text()
    assert f"its log is {build}/vllm.log" in said
    assert "memory" not in said + (build / "vllm.log").read_text()
    assert "INFO loading" in (build / "vllm-2.log").read_text()
    third = vendor(build)
    until(lambda: third.is_ready, "the third server ready")
    assert (build / "vllm.log.1").exists()
    for deploy in (second, third):
        deploy.process.send_signal(signal.SIGTERM)
        assert deploy.ended() == 0
    names = sorted(file.name for file in build.iterdir())
    assert names == ["launch.json", "vllm-2.log", "vllm.log", "vllm.log.1"]


def test_a_port_that_is_taken(build: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        words = ("--python", sys.executable, "--openai-port", port)
        done = trtspec("deploy", RECIPE, "--output", build, *words)
    assert done.returncode == 1
    assert "the port is in use" in done.stderr
    assert not (build / "vllm.log").exists()


def test_engines_have_no_python_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "model_repository").mkdir()
    done = trtspec("deploy", RECIPE, "--output", tmp_path, "--plain")
    assert done.returncode == 2
    assert "the build has engines" in " ".join(done.stderr.split())


def test_generate_asks_it(build: Path, tmp_path: Path, vendor: Callable[..., Vendor]) -> None:
    deploy = vendor(build)
    url = f"http://127.0.0.1:{deploy.port}/v1"
    said = trtspec("generate", "--url", url, "--wait", DEADLINE_S, "--max-tokens", 3, "a")
    assert (said.returncode, said.stdout) == (0, " 0 1 2\n"), said.stderr
    assert "3 tokens" in said.stderr
    assert "1 of 4 draft tokens accepted (25%)" in said.stderr
    plain = trtspec("generate", "--url", url, "--num-draft-tokens", 0, "a")
    assert plain.returncode == 1
    assert "trtspec deploy RECIPE --plain" in " ".join(plain.stderr.split())


def test_generate_finds_it(
    tmp_path: Path, vendor: Callable[..., Vendor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the words that ask a Triton: `trtspec generate PROMPT`; SGLang's API counts drafts if asked."""
    deploy, (free, *_) = vendor(written(tmp_path / "build", FAKE_OWNER="sglang")), free_ports()
    monkeypatch.setattr(clients, "GRPC", free)
    monkeypatch.setattr(clients, "OPENAI", deploy.port)
    monkeypatch.setattr(clients, "API", f"http://127.0.0.1:{deploy.port}/v1")
    said = trtspec("generate", "--wait", DEADLINE_S, "--max-tokens", 4, "a")
    assert (said.returncode, said.stdout) == (0, " 0 1 2 3\n"), said.stderr
    assert said.stderr.endswith("tokens/s, 2 of 8 draft tokens accepted (25%)\n")


def test_bench_serves_it_meanwhile(build: Path, tmp_path: Path) -> None:
    """Without drafts as well: a CPU has room for both."""
    (build / "tokenizer").mkdir()
    (tmp_path / "few.txt").write_text("one\ntwo\nthree\n")
    words = ("--workload", tmp_path / "few.txt", "--streams", 1, "--block-prompts", 1, "--max-tokens", 2)
    serving = ("--build", build, "--python", sys.executable, "--output", tmp_path / "bench")
    measured = trtspec("bench", RECIPE, *serving, *words)
    assert measured.returncode == 0, measured.stderr
    assert measured.stderr.count("stopping vLLM") == 2
    result = json.loads((tmp_path / "bench/result.json").read_text())
    assert (result["model"]["name"], result["server"]["plain_by"]) == ("tiny", "baseline")
    assert result["levels"][0]["speedup"] is not None


def test_deploy_serves_vllm_under_triton_only_in_the_image_of_nvidia(tmp_path: Path, docker: Docker) -> None:
    """It is built without an engine, and served in NVIDIA's image alone."""
    recipe, build = tmp_path / "recipe.yaml", tmp_path / "build"
    models = f"target: {{model: {TINY}/target}}\ndraft: {{model: {TINY}/draft}}\n"
    of_triton = "engine: {backend: vllm}\nserving: {layout: triton}\nhardware: {gpu: none}\n"
    recipe.write_text(f"name: tiny\n{models}{of_triton}")
    built = trtspec("build", recipe, "--output", build)
    assert built.returncode == 0, built.stderr
    arguments = json.loads((build / "model_repository/speculative_llm/1/model.json").read_text())
    assert arguments["speculative_config"]["model"] == str(TINY / "draft")

    of_build, cluster = (recipe, "--output", build), "cannot be deployed on a cluster; vLLM's own server can"
    for words, said in (
        (("deploy", *of_build), "needs NVIDIA's image of Triton with vLLM"),
        (("deploy", *of_build, "--api-keys", "keys"), "Triton has no API of OpenAI's in front of vLLM"),
        (("kubernetes", "deploy", *of_build), f"vLLM inside Triton {cluster}"),
    ):
        refused = docker.trtspec(*words)
        assert refused.returncode in (1, 2)
        assert said in " ".join(refused.stderr.split())
    shown = docker.trtspec("deploy", recipe, "--output", build, "--container", "--dry-run")
    assert "tritonserver:26.08-vllm-python-py3" in shown.stdout
    assert f"src={TINY}/draft,dst={TINY}/draft,readonly" in shown.stdout


@pytest.fixture
def docker(tmp_path: Path) -> Docker:
    """A docker with vLLM's image, in which the stand-in is."""
    machine = GpuMachine(tmp_path / "machine")
    daemon = machine.containers("vllm/vllm-openai:v0.32.0")
    daemon.program("vllm", f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m {FAKE} "$@"\n')
    return Docker(daemon, {**machine.environment, "HF_TOKEN": "hf_secret"})


@dataclass
class Docker:
    daemon: DockerDaemon
    environment: dict[str, str]

    def trtspec(self, *words: object) -> subprocess.CompletedProcess[str]:
        return trtspec(*words, environment=self.environment)


def test_a_container_is_left_running_and_stopped(build: Path, tmp_path: Path, docker: Docker) -> None:
    port, keys = free_port(), tmp_path / "keys"
    keys.write_text("secret-key-1\n")
    options = ("--openai-port", port, "--api-keys", keys, "--grace", 2)
    deployed = docker.trtspec("deploy", RECIPE, "--output", build, "--container", "--detach", *options)
    assert deployed.returncode == 0, deployed.stderr
    assert f"OpenAI   http://127.0.0.1:{port}/v1\n" in deployed.stdout
    (run,) = docker.daemon.calls("run")
    assert "secret-key-1" not in " ".join(run)
    assert "HF_TOKEN" not in run, "folders are loaded, so nobody is asked on the Hub"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/told", timeout=DEADLINE_S) as response:
        told = json.load(response)
    assert told["argv"][0] == "serve"
    assert told["argv"][-4:] == ["--host", "0.0.0.0", "--port", str(port)]
    assert told["environment"]["VLLM_API_KEY"] == "secret-key-1"

    (row,) = json.loads(docker.trtspec("deploy", "status", "--json").stdout)
    assert (row["state"], row["openai"]) == ("ready", f"http://127.0.0.1:{port}/v1")
    assert row["openai_state"] == ""
    stopped = docker.trtspec("deploy", "stop")
    assert stopped.returncode == 0, stopped.stderr
    assert docker.daemon.running() == []
    assert not servers(port)
