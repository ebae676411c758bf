"""The lines of docker and podman that build and serve, to the letter: docker's for each release.

`kinds.txt` has what the machines of `tests/fakes/infos.py` change in them. UPDATE_GOLDEN=1 writes all anew.
Where this machine has docker's command line, that tells what it would ask the daemon for.
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

from tests.fakes import infos
from trtspec.backends.table import backend_named
from trtspec.deployment.container import container_of, run_words
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.triton.launch import TritonLaunch
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.containers.dialect import DOCKER as DOCKERS
from trtspec.pipeline.containers.dialect import PODMAN, Dialect
from trtspec.pipeline.containers.engine import ContainerEngine, ContainerHost, read_info
from trtspec.pipeline.containers.program import Program
from trtspec.pipeline.machine.devices import Gpu, container_gpus
from trtspec.recipe.releases import DEFAULT, RELEASES

RECIPES = Path(__file__).parents[2] / "recipes"
GOLDEN = Path(__file__).with_name("containers")
# Somebody with two GPUs on a machine with systemd, which is left running when they have logged out.
SOMEBODY = ContainerHost(
    uid=1000,
    gid=1001,
    memlock=8 << 20,
    has_toolkit=True,
    devices=frozenset({"0", "1", "all", "GPU-0", "GPU-1"}),
    has_systemd=True,
    has_session=True,
    lingers=True,
)
KINDS = {
    "docker, rootless": (DOCKERS, infos.DOCKER_OF_USER, SOMEBODY),
    "docker, userns-remap": (DOCKERS, infos.DOCKER_REMAPS, SOMEBODY),
    "docker, SELinux": (DOCKERS, infos.DOCKER_LABELS, SOMEBODY),
    "podman, root's": (PODMAN, infos.PODMAN_OF_ROOT, replace(SOMEBODY, uid=0, gid=0, memlock=-1)),
    "podman, rootless": (PODMAN, infos.PODMAN_OF_USER, SOMEBODY),
    "podman, rootless, SELinux, no session of systemd": (
        PODMAN,
        infos.PODMAN_ON_FEDORA,
        replace(SOMEBODY, has_session=False, lingers=False),
    ),
    "podman, rootless, a specification by nvidia-ctk 1.12": (
        PODMAN,
        infos.PODMAN_OF_USER,
        replace(SOMEBODY, devices=frozenset({"gpu0", "gpu1"})),
    ),
}
DOCKER = shutil.which("docker")


def engine(dialect: Dialect, info: dict[str, Any], here: ContainerHost) -> ContainerEngine:
    return read_info(Program(dialect.name, dialect), info, here)


def lines(name: str, release: str, folder: Path, by: ContainerEngine) -> dict[str, tuple[str, ...]]:
    """Of both builds and of the server, on a machine with enough GPUs for the target."""
    text = (RECIPES / f"{name}.yaml").read_text()
    recipe = folder / f"{name}.yaml"
    recipe.write_text(text.replace("\nengine:\n", f"\nengine:\n  release: {release}\n"))
    plan = make_plan(recipe, output=f"/builds/{name}", container=True)
    loaded = plan.resolved.loaded.recipe
    gpus = tuple(
        Gpu(index, f"GPU-{index}", "NVIDIA H100", 90, "590", "Default", False, 80 << 30, 80 << 30)
        for index in range(loaded.hardware.count)
    )
    host = replace(plan.facts.host, gpus=gpus, container_engine=by)
    steps = backend_named(plan.resolved.backend).steps(plan.resolved, replace(plan.facts, host=host), None)
    built = {step.name: step.command for step in steps if step.name.startswith("build")}
    ranks = max(engine.checkpoint.mapping.world_size for engine in plan.resolved.engines.values())
    deployment = Deployment(loaded.name, plan.output, loaded.serving.model_name, key="KEY")
    launch = TritonLaunch(ranks, loads_one_by_one=ranks > 1)
    assert plan.resolved.release
    devices = container_gpus(gpus, loaded.hardware.count, by.devices)
    served = container_of(deployment, launch, plan.resolved.release.image, devices)
    return {**built, "deploy": run_words(served, by, detach=True)}


DOCKER_OF_ROOT = engine(DOCKERS, infos.DOCKER, SOMEBODY)


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch, hub_cache: Path) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", "/home/somebody/.cache/trtspec")


@pytest.mark.usefixtures("somebody")
@pytest.mark.parametrize(
    ("by", "release"),
    [*((DOCKER_OF_ROOT, release) for release in RELEASES), (engine(*KINDS["podman, rootless"]), DEFAULT)],
    ids=lambda value: value.program.name if isinstance(value, ContainerEngine) else value,
)
@pytest.mark.parametrize("name", ["llama-3.1-8b-h100", "llama-3.3-70b-2xh100"])
def test_build_and_deploy_run_the_golden_container_lines(
    name: str, by: ContainerEngine, release: str, tmp_path: Path
) -> None:
    shown = ""
    for what, argv in lines(name, release, tmp_path, by).items():
        first, *options = options_of(argv)
        shown += f"{what}:\n{first}\n" + "".join(f"    --{option}\n" for option in options)
    check(GOLDEN / by.program.name / f"{name}_{release}.txt", shown)


@pytest.mark.usefixtures("somebody")
def test_each_kind_of_machine_changes_the_container_line_as_in_the_golden_file(tmp_path: Path) -> None:
    """Against docker's line for the server, as it is where root runs docker."""
    name = "llama-3.3-70b-2xh100"
    usual = options_of(lines(name, DEFAULT, tmp_path, DOCKER_OF_ROOT)["deploy"])
    shown = ""
    for kind, found in KINDS.items():
        options = options_of(lines(name, DEFAULT, tmp_path, engine(*found))["deploy"])
        shown += f"{kind}:\n"
        shown += "".join(f"    without --{option}\n" for option in usual[1:] if option not in options)
        shown += "".join(f"    with --{option}\n" for option in options[1:] if option not in usual)
    check(GOLDEN / "kinds.txt", shown)


def options_of(argv: tuple[str, ...]) -> list[str]:
    return " ".join(argv).split(" --")


def check(golden: Path, shown: str) -> None:
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
    found = lines("llama-3.3-70b-2xh100", "1.2.1", tmp_path, DOCKER_OF_ROOT)
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
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "1"]
    assert served["Cmd"][:7] == mpirun
    assert "TRTLLM_ORCHESTRATOR=1" in served["Env"]
    (mount,) = served["HostConfig"]["Mounts"]
    folder = "/builds/llama-3.3-70b-2xh100"
    assert mount == {"Type": "bind", "Source": folder, "Target": folder, "ReadOnly": True}
