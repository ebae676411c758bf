"""The tiny pair in both layouts, built and deployed by the command line as a user would."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import pytest

from tests.e2e.in_docker import Deploying, Docker
from tests.support.command_line import trtspec
from tests.support.grpc_client import GrpcClient
from tests.support.ports import free_port, free_ports
from tests.support.processes import command_lines

TINY = Path(__file__).parents[2] / "recipes" / "tiny"
RECIPE = TINY / "recipe.yaml"
TRTSPEC = Path(sys.prefix, "bin", "trtspec")
DEADLINE_S = 240.0
LAYOUTS = ("in_process", "bls")
# A text of so many tokens takes longer than a test: who asks for one is in flight until it is cancelled, on a
# fast machine too. The pair was trained for 1,024; what it says beyond is of no account.
ENDLESS = 8_000
T = TypeVar("T")


def _mostly(layout: str) -> pytest.MarkDecorator:
    others = [pytest.param(other, marks=pytest.mark.sweep) for other in LAYOUTS if other != layout]
    return pytest.mark.parametrize("tiny_recipe", [layout, *others], indirect=True)


# For what is the same in every layout: a test runs in this one, and under `make test-sweep` in the others.
IN_PROCESS, BLS = map(_mostly, LAYOUTS)

# For what a test proves in each of them, also outside the sweep.
EACH_LAYOUT = pytest.mark.parametrize("tiny_recipe", LAYOUTS, indirect=True)

# For what is of one layout alone.
ONLY_IN_PROCESS, ONLY_BLS = (
    pytest.mark.parametrize("tiny_recipe", [layout], indirect=True) for layout in LAYOUTS
)


def wait_until(happens: Callable[[], T | Literal[False]], what: str, seconds: float = DEADLINE_S) -> T:
    """What `happens` returns as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (result := happens()):
        assert time.monotonic() < deadline, f"not in {seconds:g} s: {what}"
        time.sleep(0.05)
    return result


@dataclass
class Deploy:
    """A `trtspec deploy` in the foreground of its own process; what it says is in the file `said`."""

    process: subprocess.Popen[bytes]
    said: Path
    ports: tuple[int, int, int]
    model: str = "speculative_llm"
    api_port: int = 0

    @property
    def api(self) -> str:
        """Where OpenAI's API is, for a deploy that has one."""
        return f"http://127.0.0.1:{self.api_port}/v1"

    @property
    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.said.read_text()
        return "is ready" in self.said.read_text()

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Waits for the end of the command, and returns its exit status."""
        return self.process.wait(DEADLINE_S)

    def server_pids(self) -> set[int]:
        """The tritonserver that serves this build, and its children.

        On this machine the names of its shared memory tell whose it is, in a container its public port.
        """
        ours = (f"region-prefix-name=trtspec_{self.process.pid}_", f"--grpc-port={self.ports[1]}")
        found = set()
        for pid, line in command_lines():
            if "tritonserver" in line[0] and any(mark in word for word in line for mark in ours):
                found.add(pid)
                with suppress(OSError):
                    found |= set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
        return found

    # The server as a client sees it.

    def request(self, method: str, path: str, body: bytes | None = None, port: int = 0) -> tuple[int, str]:
        kind = {"Content-Type": "application/json"} if body is not None else {}
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=DEADLINE_S)
        try:
            connection.request(method, path, body, kind)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def post(self, body: bytes | dict[str, Any], verb: str = "generate") -> tuple[int, Any]:
        """Status and the answer's JSON; a list of them for `generate_stream`."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, text = self.request("POST", f"/v2/models/{self.model}/{verb}", raw)
        if verb == "generate":
            return status, json.loads(text)
        return status, [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n") if event]

    def generate(self, prompt: str, **values: Any) -> str:
        status, answer = self.post({"text_input": prompt, **values})
        assert status == 200, answer
        text: str = answer["text_output"]
        return text

    def stream(self, prompt: str, **values: Any) -> list[dict[str, Any]]:
        events: list[dict[str, Any]]
        status, events = self.post({"text_input": prompt, "stream": True, **values}, "generate_stream")
        assert status == 200, events
        return events

    def client(self) -> GrpcClient:
        return GrpcClient(self.grpc_url, self.model)

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all label sets that have `labels`."""
        _, text = self.request("GET", "/metrics", port=2)
        rows = re.findall(rf"^trtspec:{name}{{(.*)}} (\S+)$", text, re.MULTILINE)
        assert rows, f"no metric {name}"
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(value) for given, value in rows if all(label in given for label in wanted))


@contextmanager
def at_work(server: Deploy, *prompts: str, **values: Any) -> Iterator[None]:
    """Endless requests that have begun to answer; their clients leave at the end."""
    with ExitStack() as stack:
        for prompt in prompts:
            client = stack.enter_context(closing(server.client()))
            body = {"text_input": prompt, "max_tokens": ENDLESS, "end_id": -1, "stream": True, **values}
            next(stack.enter_context(closing(client.generate(body))))
        yield


class Deployer:
    """Starts `trtspec deploy`, and sees to it that nothing of it is left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Deploy] = []

    def __call__(
        self,
        build: Path,
        *options: str,
        recipe: Path = RECIPE,
        with_api: bool = False,
        environment: Mapping[str, str] = os.environ,
        ports: tuple[int, int, int] | None = None,
    ) -> Deploy:
        ports = ports or free_ports()
        flags = _port_flags(ports)
        api_port = free_port() if with_api else 0
        flags += ["--openai-port", str(api_port)] if with_api else ["--no-openai"]
        said = self._folder / f"deploy-{len(self._started)}.log"
        with said.open("wb") as file:
            process = subprocess.Popen(
                [TRTSPEC, "deploy", recipe, "--output", build, *flags, *options],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**environment, "OMP_NUM_THREADS": "1"},
            )
        deploy = Deploy(process, said, ports, api_port=api_port)
        self._started.append(deploy)
        return deploy

    def end_all(self) -> None:
        for deploy in self._started:
            deploy.process.kill()
            deploy.process.wait()
            # They would end by themselves, three seconds later.
            for pid in deploy.server_pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until(partial(_is_gone, deploy), "the end of a server")


def refused(
    build: Path,
    *options: str,
    recipe: Path = RECIPE,
    environment: Mapping[str, str] = os.environ,
    status: int = 1,
) -> str:
    """What `trtspec deploy` says where it starts no server; it runs in this process."""
    words = ("deploy", recipe, "--output", build, *_port_flags(free_ports()), "--no-openai", *options)
    done = trtspec(*words, environment=environment)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def _port_flags(ports: tuple[int, int, int]) -> list[str]:
    names = ("--http-port", "--grpc-port", "--metrics-port")
    return [str(word) for pair in zip(names, ports, strict=True) for word in pair]


def _is_gone(deploy: Deploy) -> bool:
    return not deploy.server_pids()


class Until(Protocol):
    """`wait_until`."""

    def __call__(
        self, happens: Callable[[], T | Literal[False]], what: str, seconds: float = DEADLINE_S
    ) -> T: ...


@pytest.fixture(scope="session")
def until() -> Until:
    return wait_until


@pytest.fixture(scope="session", params=["in_process", pytest.param("bls", marks=pytest.mark.sweep)])
def tiny_recipe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny recipe in one of the layouts, with room for endless texts and drafts of four tokens.

    Where the draft is a model of its own, it is told its device.
    """
    folder, text = tmp_path_factory.mktemp(request.param), RECIPE.read_text()
    for role in ("target", "draft"):
        config = Path(shutil.copytree(TINY / role, folder / role), "config.json")
        positions = {"max_position_embeddings": ENDLESS + 192}
        config.write_text(json.dumps(json.loads(config.read_text()) | positions))
    text = replaced(text, "max_seq_len: 1024", f"max_seq_len: {ENDLESS + 192}")
    text = replaced(text, "\nspeculation:\n", "\nspeculation:\n  num_draft_tokens: 4\n")
    if request.param == "bls":
        text = replaced(text, "\ndraft:\n", "\ndraft:\n  device: cpu\n")
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"{text}serving: {{layout: {request.param}}}\n")
    return recipe


def replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.fixture(scope="session")
def tiny_build(tiny_recipe: Path) -> Path:
    """A build directory of the tiny recipe; not to be changed."""
    folder = tiny_recipe.with_name("build")
    subprocess.run([TRTSPEC, "build", tiny_recipe, "--output", folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def server(tiny_recipe: Path, tiny_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deploy]:
    """The one server of a layout that tests share; it must be healthy, and stop cleanly, after them."""
    deployer = Deployer(tmp_path_factory.mktemp("server"))
    try:
        deploy = deployer(tiny_build, recipe=tiny_recipe, with_api=True)
        wait_until(lambda: deploy.is_ready, "the server ready")
        yield deploy
        wait_until(lambda: deploy.metric("num_requests_running") == 0, "an idle server")
        assert deploy.stop() == 0, deploy.said.read_text()
        assert "Traceback" not in (tiny_build / "tritonserver.log").read_text()
    finally:
        deployer.end_all()


@contextmanager
def served_build(recipe: Path, folder: Path) -> Iterator[Deploy]:
    """The server of a recipe that is built for it; it must stop cleanly afterwards."""
    build, deployer = folder / "build", Deployer(folder)
    subprocess.run([TRTSPEC, "build", recipe, "--output", build], check=True, capture_output=True)
    try:
        deploy = deployer(build, recipe=recipe)
        wait_until(lambda: deploy.is_ready, "the server ready")
        yield deploy
        assert deploy.stop() == 0, deploy.said.read_text()
        assert "Traceback" not in (build / "tritonserver.log").read_text()
    finally:
        deployer.end_all()


@pytest.fixture
def deployer(tmp_path: Path) -> Iterator[Deployer]:
    """For tests that need a server of their own."""
    deployer = Deployer(tmp_path)
    yield deployer
    deployer.end_all()


@pytest.fixture
def build_copy(tiny_build: Path, tmp_path: Path) -> Path:
    """A build that was moved, and may be changed."""
    folder = tmp_path / "moved"
    shutil.copytree(tiny_build, folder, ignore=shutil.ignore_patterns("*.log"))
    return folder


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[Docker]:
    docker = Docker(tmp_path / "machine")
    yield docker
    for name in docker.names():
        subprocess.run([docker.daemon.client, "rm", "--force", name], env=docker.environment)


@pytest.fixture
def deploy(docker: Docker, deployer: Deployer, build_copy: Path, tiny_recipe: Path) -> Deploying:
    def start(*options: str, with_api: bool = False) -> Deploy:
        places: Any = {"recipe": tiny_recipe, "environment": docker.environment}
        return deployer(build_copy, "--container", *options, with_api=with_api, **places)

    return start
