"""The lines of docker that build and serve, for each release, to the letter.

UPDATE_GOLDEN=1 writes them anew. Where this machine has docker's command line, that tells what it would ask
the daemon for.
"""

from __future__ import annotations

import json
import os
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from trtspec.build.plan import make_plan
from trtspec.deploy.deployment import Deployment
from trtspec.deploy.in_docker import container
from trtspec.docker.daemon import Daemon, container_user
from trtspec.machine.devices import Gpu, container_gpus
from trtspec.progress import no_progress
from trtspec.recipe.releases import RELEASES
from trtspec.steps.steps import make_steps

RECIPES = Path(__file__).parents[2] / "recipes"
GOLDEN = Path(__file__).with_name("docker")
DOCKER = shutil.which("docker")


def lines(name: str, release: str, folder: Path) -> dict[str, tuple[str, ...]]:
    """Of both builds and of the server, on a machine with enough GPUs for the target."""
    text = (RECIPES / f"{name}.yaml").read_text()
    recipe = folder / f"{name}.yaml"
    recipe.write_text(text.replace("\nengine:\n", f"\nengine:\n  release: {release}\n"))
    plan = make_plan(recipe, {"output": f"/builds/{name}"}, no_progress, to_run=False, container=True)
    loaded = plan.resolved.loaded.recipe
    gpus = tuple(
        Gpu(index, f"GPU-{index}", "NVIDIA H100", 90, "590", "Default", False, 80 << 30, 80 << 30)
        for index in range(loaded.hardware.count)
    )
    daemon = Daemon("29.0.1", gpus=True)
    host = replace(plan.facts.host, gpus=gpus, daemon=daemon)
    steps = make_steps(plan.resolved, replace(plan.facts, host=host))
    built = {step.name: step.command for step in steps if step.name.startswith("build")}
    ranks = max(engine.checkpoint.mapping.world_size for engine in plan.resolved.engines.values())
    deployment = Deployment(
        loaded.name, plan.output, loaded.serving.model_name, ranks, loads_one_by_one=ranks > 1, key="KEY"
    )
    assert plan.resolved.release
    devices = container_gpus(gpus, loaded.hardware.count)
    served = container(deployment, plan.resolved.release.image, devices, container_user(daemon))
    return {**built, "deploy": served.run("--detach")}


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch, hub_cache: Path) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "getgid", lambda: 1001)
    monkeypatch.setenv("TRTSPEC_CACHE", "/home/somebody/.cache/trtspec")


@pytest.mark.usefixtures("somebody")
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ["llama-3.1-8b-h100", "llama-3.3-70b-2xh100"])
def test_lines(name: str, release: str, tmp_path: Path) -> None:
    shown = ""
    for what, argv in lines(name, release, tmp_path).items():
        words = " ".join(argv).split(" --")
        shown += f"{what}:\n{words[0]}\n" + "".join(f"    --{word}\n" for word in words[1:])
    golden = GOLDEN / f"{name}_{release}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(shown)
    assert shown == golden.read_text()


class Daemonette(BaseHTTPRequestHandler):
    """A daemon that refuses every container, and remembers what it was to be."""

    def do_GET(self) -> None:
        self.answer(200, {})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(json.loads(body))  # type: ignore[attr-defined]
        self.answer(409, {"message": "refused"})

    def answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in (("Api-Version", "1.43"), ("Ostype", "linux"), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def daemon(socket: Path) -> Iterator[list[Any]]:
    with socketserver.ThreadingUnixStreamServer(str(socket), Daemonette) as server:
        server.asked = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.asked  # type: ignore[attr-defined]
        server.shutdown()


@pytest.mark.skipif(DOCKER is None, reason="what docker understands is told by its own command line")
@pytest.mark.usefixtures("somebody")
def test_docker_understands_them(tmp_path: Path) -> None:
    environment = {"DOCKER_HOST": f"unix://{tmp_path}/docker.sock", "HOME": str(tmp_path)}
    found = lines("llama-3.3-70b-2xh100", "1.2.1", tmp_path)
    with daemon(tmp_path / "docker.sock") as asked:
        for argv in found.values():
            command = [str(DOCKER), *argv[1:]]
            said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert "refused" in said.stderr
    build, draft, served = asked
    assert build["Cmd"][0] == draft["Cmd"][0] == "trtllm-build"
    assert build["User"] == "1000:1001"
    assert build["WorkingDir"] == "/builds/llama-3.3-70b-2xh100/.trtspec/logs"
    assert build["HostConfig"]["AutoRemove"]
    for content in asked:
        host = content["HostConfig"]
        assert host["DeviceRequests"][0]["DeviceIDs"] == ["GPU-0", "GPU-1"]
        assert host["ShmSize"] == 8 << 30
        assert {limit["Name"]: limit["Soft"] for limit in host["Ulimits"]} == {
            "memlock": -1,
            "stack": 1 << 26,
        }
        assert host["Init"]
        assert "HF_TOKEN" not in json.dumps(content)
    assert served["Labels"]["trtspec.deployment.ports"] == "8000,8001,8002"
    assert served["HostConfig"]["PortBindings"]["8000/tcp"] == [{"HostIp": "127.0.0.1", "HostPort": "8000"}]
    assert served["Cmd"][:6] == ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "1"]
    assert "TRTLLM_ORCHESTRATOR=1" in served["Env"]
    (mount,) = served["HostConfig"]["Mounts"]
    folder = "/builds/llama-3.3-70b-2xh100"
    assert mount == {"Type": "bind", "Source": folder, "Target": folder, "ReadOnly": True}
