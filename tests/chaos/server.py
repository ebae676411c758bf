"""A `trtspec deploy` of the tiny pair as a chaos run sees it: its processes and what they hold."""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import free_ports
from tests.support.processes import command_line, numbers_of

HERE = Path(__file__).parent
TINY = HERE.parents[1] / "recipes" / "tiny"
MODEL = "speculative_llm"
START_S = 90.0
QUEUE = 1024
"""Completions that may wait: 256 clients ask for up to four each, and none of them may be refused."""


@dataclass(frozen=True)
class Process:
    """One of the server's; `name` says what it does, `rss` is in bytes."""

    pid: int
    name: str
    rss: int
    threads: int


@dataclass
class Server:
    """`said` is what `deploy` says, `ports` are those of HTTP, gRPC and the metrics."""

    process: subprocess.Popen[bytes]
    build: Path
    said: Path
    ports: tuple[int, int, int]
    _memory: set[str] = field(default_factory=set)

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    @property
    def starts(self) -> int:
        """How often it has been ready."""
        return self.said.read_text(errors="replace").count("is ready")

    def is_ready(self) -> bool:
        return self._get(0, f"/v2/models/{MODEL}/ready")[0] == 200

    def metric(self, name: str) -> float:
        _, text = self._get(2, "/metrics")
        found = re.findall(rf"^trtspec:{name}{{.*}} (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def told(self) -> dict[str, float]:
        """What the model has said of itself since the question."""
        asked, told = time.monotonic(), {"at": 0.0}
        while told["at"] < asked and time.monotonic() < asked + START_S:
            time.sleep(0.02)
            told = json.loads(self._file("told.json").read_text())
        return told

    def set_mode(self, mode: str) -> None:
        """What the draft does from now on."""
        self._file("mode.new").write_text(mode)
        self._file("mode.new").replace(self._file("mode"))

    def kill(self, name: str, number: int) -> None:
        (victim,) = (process for process in self.processes() if process.name == name)
        os.kill(victim.pid, number)

    def processes(self) -> list[Process]:
        """`deploy` and all that descend from it."""
        found, pids = [], [self.process.pid]
        while pids:
            pid = pids.pop()
            with suppress(OSError, IndexError):
                folder = Path(f"/proc/{pid}")
                for task in (folder / "task").iterdir():
                    pids += map(int, (task / "children").read_text().split())
                line = command_line(pid)
                numbers = numbers_of(pid)
                found.append(Process(pid, _name(line), numbers["VmRSS"] * 1024, numbers["Threads"]))
        return found

    def regions(self) -> list[str]:
        """What is in shared memory by the name of any of its starts."""
        return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(tuple(self._memory))]

    def note_memory(self) -> None:
        """To be called after each start: how its regions begin is told by the server's command line."""
        (server,) = (process for process in self.processes() if process.name == "tritonserver")
        line = " ".join(command_line(server.pid))
        found = re.search(r"shm-region-prefix-name=(\S+)", line)
        assert found is not None
        self._memory.add(found[1])

    def _file(self, name: str) -> Path:
        return self.build / "model_repository" / MODEL / "1" / name

    def _get(self, port: int, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()


def _name(line: list[str]) -> str:
    """tritonserver, watchdog, the model of a stub, or deploy."""
    if line[0].endswith("tritonserver"):
        return "tritonserver"
    if "triton_python_backend_stub" in line[0]:
        return Path(line[1]).parents[1].name
    return "watchdog" if any(word.endswith("watching.py") for word in line) else "deploy"


def build(folder: Path, layout: str) -> tuple[Path, Path]:
    """The recipe and its build, whose draft can be told to fail."""
    recipe, output = folder / "recipe.yaml", folder / "build"
    text = (TINY / "recipe.yaml").read_text()
    for role in ("target", "draft"):
        text = text.replace(f"./{role}", str(TINY / role))
    recipe.write_text(f"{text}serving: {{layout: {layout}, max_queue_size: {QUEUE}}}\n")
    command = [sys.executable, "-m", "trtspec", "build", str(recipe), "--output", str(output)]
    subprocess.run(command, check=True, capture_output=True)
    version = output / "model_repository" / MODEL / "1"
    shutil.copy(HERE / "faulty_model.py", version / "model.py")
    (version / "mode").write_text("works")
    return recipe, output


@contextmanager
def deploy(recipe: Path, output: Path, *options: str) -> Iterator[Server]:
    """Ready when the block begins; killed at its end if it has not ended."""
    http_port, grpc_port, metrics_port = free_ports()
    flags = [f"--http-port={http_port}", f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}"]
    said = recipe.with_name("deploy.log")
    command = [sys.executable, "-m", "trtspec", "deploy", str(recipe), "--output", str(output), "--no-openai"]
    with said.open("wb") as log:
        process = subprocess.Popen(
            [*command, *flags, *options],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    server = Server(process, output, said, (http_port, grpc_port, metrics_port))
    try:
        until(lambda: server.starts > 0 or process.poll() is not None, START_S, "the server ready")
        assert process.poll() is None, said.read_text()
        server.note_memory()
        yield server
    finally:
        for victim in server.processes():
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
        process.wait()


def until(happens: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, f"not in {seconds:g} s: {what}"
        time.sleep(0.05)
