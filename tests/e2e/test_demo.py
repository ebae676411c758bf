"""`recipes/tiny/demo.sh`, which `make demo` runs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import TINY, wait_until
from tests.ports import free_port, free_ports
from tests.processes import naming


def environment(ports: tuple[int, int, int]) -> dict[str, str]:
    names = ("HTTP_PORT", "GRPC_PORT", "METRICS_PORT")
    return {
        **os.environ,
        "OPENAI_PORT": str(free_port()),
        **{name: str(port) for name, port in zip(names, ports, strict=True)},
        "PATH": os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
    }


def demo(folder: Path, ports: tuple[int, int, int]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TINY / "demo.sh")],
        cwd=folder,
        env=environment(ports),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_it_shows_a_completion_its_acceptance_and_the_same_text(tmp_path: Path) -> None:
    said = demo(tmp_path, free_ports())

    assert said.returncode == 0, said.stderr
    assert "draft tokens accepted" in said.stderr
    assert "same text" in said.stdout
    assert said.stderr.endswith("stopped\n")
    ports = re.findall(r"(?:at|:) ?127\.0\.0\.1:(\d+)", said.stderr)
    assert not ports, said.stderr


def test_a_taken_port_ends_it_with_the_reason(tmp_path: Path) -> None:
    ports = free_ports()
    with socket.create_server(("127.0.0.1", ports[2])):
        said = demo(tmp_path, ports)

    assert said.returncode == 1
    assert f"error: 127.0.0.1:{ports[2]}: the port is in use" in said.stderr


def test_killed_it_leaves_no_server(tmp_path: Path) -> None:
    ports = free_ports()
    said = tmp_path / "said"
    with said.open("wb") as file:
        shell = subprocess.Popen(
            [str(TINY / "demo.sh")], cwd=tmp_path, env=environment(ports), stdout=file, stderr=file
        )
    wait_until(lambda: servers(tmp_path), "a server")

    shell.kill()
    shell.wait()

    wait_until(lambda: not servers(tmp_path), "the end of the server")


def servers(folder: Path) -> list[str]:
    """The command lines of the tritonservers of builds in a folder."""
    return [line for line in naming(folder) if "--model-repository=" in line]
