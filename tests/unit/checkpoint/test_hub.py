"""`fetch` in a process of its own, against a Hub on the loopback interface."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "0123456789" * 4
FETCH = """
import sys
from trtspec.checkpoint.hub import fetch
from trtspec.errors import ModelError
try:
    print(fetch(sys.argv[1], sys.argv[2] or None))
except ModelError as error:
    print(f"{error}; {error.repair}")
"""


class Hub(ThreadingHTTPServer):
    """Serves `owner/model` from a folder; knows of `owner/gated`, and of no other."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.asked = folder, list[str]()


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.server.asked.append(self.path)
        if self.path.startswith("/api/models/owner/gated"):
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif self.path in (f"/api/models/owner/model/revision/{name}" for name in ("main", "v1", COMMIT)):
            files = [{"rfilename": path.name} for path in self.server.folder.iterdir()]
            self._send(200, json.dumps({"id": "owner/model", "sha": COMMIT, "siblings": files}).encode())
        elif self.path.startswith("/api/models/owner/model/revision/"):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif self.path.startswith(f"/owner/model/resolve/{COMMIT}/"):
            content = (self.server.folder / Path(self.path).name).read_bytes()
            etag = hashlib.sha256(content).hexdigest()
            self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        else:
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_GET = do_HEAD

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(llama_folder: Callable[..., Path]) -> Iterator[Hub]:
    folder = llama_folder("published")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "modeling.py").write_text("raise SystemExit")
    with Hub(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def fetch(hub: Hub, tmp_path: Path) -> Callable[..., str]:
    """Calls `fetch` in a process of its own, for huggingface_hub reads its environment once."""

    def call(model: str, revision: str = "", **environment: str) -> str:
        settings = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path / "home")}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        return subprocess.run(
            [sys.executable, "-c", FETCH, model, revision],
            env={**inherited, **quiet, **settings, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()

    return call


def test_a_snapshot_has_what_a_build_needs_and_nothing_that_runs(hub: Hub, fetch: Callable[..., str]) -> None:
    folder = Path(fetch("owner/model"))
    assert folder.name == COMMIT
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in hub.folder.iterdir()} - {"pytorch_model.bin", "modeling.py"}
    assert fetch("owner/model", "v1") == str(folder)


def test_a_pinned_commit_needs_no_network_once_it_is_whole(hub: Hub, fetch: Callable[..., str]) -> None:
    folder = fetch("owner/model", COMMIT)
    hub.asked.clear()
    assert fetch("owner/model", COMMIT) == folder
    assert hub.asked == []
    (Path(folder) / "model.safetensors").unlink()
    assert fetch("owner/model", COMMIT) == folder
    assert (Path(folder) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("model", "revision", "environment", "said"),
    [
        (
            "owner/private",
            "",
            {},
            "neither a folder nor a model of the Hugging Face Hub that this machine may see",
        ),
        ("owner/private", "", {}, "hf auth login"),
        ("owner/gated", "", {}, "accept its terms at https://huggingface.co/owner/gated"),
        ("owner/model", "v2", {}, "has no revision v2"),
        ("a/b/c", "", {}, "neither a folder nor the name of a model"),
        ("owner/model", "", {"HF_HUB_OFFLINE": "1"}, "is not on this machine, and the Hub cannot be reached"),
        ("owner/model", COMMIT, {"HF_ENDPOINT": "http://127.0.0.1:9"}, "the Hub cannot be reached"),
    ],
)
def test_what_the_hub_refuses_is_one_clear_error(
    fetch: Callable[..., str], model: str, revision: str, environment: dict[str, str], said: str
) -> None:
    output = fetch(model, revision, **environment)
    assert output.startswith(f"{model}: ")
    assert said in output
