"""The Hub's client against a server on this machine that answers as the Hub does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "evil.py": b"code",
    "pytorch_model.bin": b"pickle",
}
FETCH = """
import json, sys
from trtspec.checkpoint.hub import cached_folder, fetch
from trtspec.errors import ModelError
for name, revision in json.loads(sys.argv[1]):
    try:
        folder = fetch(name, revision)
        same = cached_folder(name, revision) == folder
        files = sorted(path.name for path in folder.iterdir())
        print(json.dumps({"commit": folder.name, "files": files, "cached": same}))
    except ModelError as error:
        print(json.dumps({"subject": error.subject, "problem": error.problem, "repair": error.repair}))
"""


class Hub(BaseHTTPRequestHandler):
    """`org/gated`, `org/broken`, and `org/good` with one revision; nothing else."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = self.path.strip("/").split("/")
        name = "/".join(parts[2:4]) if parts[0] == "api" else "/".join(parts[:2])
        if name == "org/gated":
            return self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        if name == "org/broken":
            return self.answer(500, b"", {})
        if name != "org/good":
            return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if parts[0] != "api":
            content = FILES[parts[-1]]
            digest = sha256(content).hexdigest()
            return self.answer(200, content, {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT})
        if parts[-1] not in ("main", COMMIT):
            return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        siblings = [{"rfilename": file} for file in FILES]
        return self.answer(200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode(), {})

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for header, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def fetch(endpoint: str, home: Path, *models: tuple[str, str | None]) -> list[dict[str, object]]:
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [sys.executable, "-c", FETCH, json.dumps(models)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_snapshot_holds_nothing_that_could_run(endpoint: str, tmp_path: Path) -> None:
    whole = {"commit": COMMIT, "files": ["config.json", "model.safetensors"], "cached": True}
    assert fetch(endpoint, tmp_path, ("org/good", None), ("org/good", COMMIT)) == [whole, whole]


def test_each_failure_says_what_to_do(endpoint: str, tmp_path: Path) -> None:
    models = [("org/gated", None), ("org/none", None), ("org/good", "v9"), ("org/broken", None)]
    gated, none, revision, broken = fetch(endpoint, tmp_path, *models)
    assert gated["problem"] == "is a gated model, and this machine has no access to it"
    assert "https://huggingface.co/org/gated" in str(gated["repair"])
    assert "is neither a folder nor a model of the Hugging Face Hub" in str(none["problem"])
    assert "./org/none" in str(none["repair"])
    assert revision["problem"] == "has no revision v9"
    assert broken["subject"] == "org/broken"


def test_no_network(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        (answer,) = fetch(f"http://127.0.0.1:{port}", tmp_path, ("org/good", None))
    assert answer["problem"] == "is not on this machine, and the Hub cannot be reached"
