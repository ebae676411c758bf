"""The Python API, as its page shows it: the page's code is run, against the tiny pair and a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trtspec
from tests.e2e.conftest import DEADLINE_S, IN_PROCESS, Deploy
from tests.support.ports import free_port, free_ports
from trtspec.deployment.deployment import DeployOptions
from trtspec.gateway.ports import LOOPBACK, Ports, listens

ROOT = Path(__file__).parents[2]
BUILDING, SERVING, ASKING = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs/reference/python.md").read_text(), re.M | re.S
)


@IN_PROCESS
def test_the_pages_code_runs(
    server: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"trtspec": trtspec}

    exec(BUILDING, names)
    names["options"] = DeployOptions(ports=Ports(*free_ports(), free_port()))
    exec(SERVING.replace("deploy(RECIPE, ", "deploy(RECIPE, options=options, "), names)
    exec(ASKING.replace("Client(", f"Client({server.grpc_url!r}, "), names)

    said = capsys.readouterr().out
    assert said.startswith("tiny torch\nto do ")
    assert (tmp_path / "build/python/manifest.json").is_file()
    assert f"/v1 http://127.0.0.1:{names['served'].ports.metrics}/metrics\n" in said
    assert server.generate("import ", max_tokens=20) in said
    assert not any(listens(LOOPBACK, port) for port in names["served"].all_ports.values())
    assert re.search(r"^60 tokens, \d+ of \d+ draft tokens accepted$", said, re.M)


@IN_PROCESS
def test_openais_api_gives_the_same_text_from_within_a_running_loop(server: Deploy) -> None:
    """A notebook has a loop of its own, in which nobody may start another."""
    program = (
        "import asyncio, sys, trtspec\n"
        "async def cell(): return trtspec.Client(sys.argv[1]).generate('import ', max_tokens=20).text\n"
        "print(asyncio.run(cell()), end='')"
    )
    words = [sys.executable, "-c", program, f"http://127.0.0.1:{server.api_port}/v1"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert said.stdout == server.generate("import ", max_tokens=20)


def test_the_api_is_imported_when_it_is_used() -> None:
    loaded = "sum(name.startswith('trtspec.') for name in sys.modules)"
    program = f"import sys, trtspec; trtspec.__version__; print({loaded})"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "0\n"
    assert all(getattr(trtspec, name) for name in trtspec.__all__)
