"""`recipes/tiny/demo.sh`, which `make demo` runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import TINY, free_ports


def demo(folder: Path, ports: tuple[int, int, int]) -> subprocess.CompletedProcess[str]:
    names = ("HTTP_PORT", "GRPC_PORT", "METRICS_PORT")
    environment = {
        **os.environ,
        **{name: str(port) for name, port in zip(names, ports, strict=True)},
        "PATH": os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
    }
    command = [str(TINY / "demo.sh")]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=90, check=False
    )


def test_it_shows_a_completion_its_acceptance_and_the_same_text(tmp_path):
    said = demo(tmp_path, free_ports())

    assert said.returncode == 0, said.stderr
    assert "draft tokens accepted" in said.stderr
    assert "same text" in said.stdout
    assert said.stderr.endswith("stopped\n")


def test_a_taken_port_ends_it_with_the_reason(tmp_path):
    ports = free_ports()
    with socket.create_server(("127.0.0.1", ports[2])):
        said = demo(tmp_path, ports)

    assert said.returncode == 1
    assert f"error: 127.0.0.1:{ports[2]}: the port is in use" in said.stderr
