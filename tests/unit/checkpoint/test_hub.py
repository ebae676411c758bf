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
from typing import Any
from urllib.parse import parse_qs

import pytest
from transformers import LlamaForCausalLM

COMMIT = "0123456789" * 4
FETCH = """
import sys
from contextlib import contextmanager
from trtspec.checkpoint.hub import fetch
from trtspec.errors import TrtspecError

@contextmanager
def watch(label, size):
    print("watched", label, size, file=sys.stderr)
    yield lambda amount: print("arrived", amount, file=sys.stderr)

try:
    print(fetch(sys.argv[1], sys.argv[2] or None, watch))
except TrtspecError as error:
    print(f"{error}; {error.repair}")
"""


class Hub(ThreadingHTTPServer):
    """Serves `owner/model` from a folder and `owner/private` to the token "right"; knows `owner/gated`.

    `asked` has the requests as `METHOD path`, with the range if one was asked for. The next download of a
    file ends after `break_after` bytes, if that is set; `sizes` are lies about files.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.asked = folder, list[str]()
        self.break_after: int | None = None
        self.sizes: dict[str, int] = {}


class Handler(BaseHTTPRequestHandler):
    """The part of the Hub's API that `huggingface_hub` needs to download a model."""

    server: Hub

    def do_HEAD(self) -> None:
        self.server.asked.append(" ".join([self.command, self.path, self.headers.get("Range", "")]).rstrip())
        path = self.path.partition("?")[0]
        model = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token == "wrong":
            self._send(401, b'{"error": "Invalid credentials in Authorization header"}')
        elif token == "weak":
            self._send(403, b"{}")
        elif model == "owner/gated":
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif model == "owner/model" or (model == "owner/private" and token == "right"):
            self._answer(path.split(f"{model}/")[-1])
        else:
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_GET = do_POST = do_HEAD

    def _answer(self, asked: str) -> None:
        what, _, rest = asked.partition("/")
        revision, _, name = rest.partition("/")
        if revision not in ("main", "v1", COMMIT):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif what == "revision":
            files = [{"rfilename": str(path.relative_to(self.server.folder))} for path in self._files()]
            self._send(200, json.dumps({"id": "owner/model", "sha": COMMIT, "siblings": files}).encode())
        elif what == "tree":
            self._send(200, json.dumps([self._info(path) for path in self._files()]).encode())
        elif what == "paths-info":
            names = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["paths"]
            paths = [self.server.folder / name for name in names]
            self._send(200, json.dumps([self._info(path) for path in paths if path.is_file()]).encode())
        else:
            self._send_file(self.server.folder / name)

    def _files(self) -> list[Path]:
        return [path for path in self.server.folder.rglob("*") if path.is_file()]

    def _info(self, path: Path) -> dict[str, Any]:
        size = self.server.sizes.get(path.name, path.stat().st_size)
        lfs = {"oid": digest(path), "size": size, "pointerSize": 134}
        name = str(path.relative_to(self.server.folder))
        return {"type": "file", "path": name, "oid": "0" * 40, "size": size, "lfs": lfs}

    def _send_file(self, path: Path) -> None:
        content, headers = path.read_bytes(), {"ETag": f'"{digest(path)}"', "X-Repo-Commit": COMMIT}
        if asked := self.headers.get("Range"):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._send(206, content[start:], headers)
        else:
            self._send(200, content, headers)

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.server.break_after is not None and len(content) > self.server.break_after:
            content, self.server.break_after = content[: self.server.break_after], None
            self.close_connection = True
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def hub(llama_folder: Callable[..., Path]) -> Iterator[Hub]:
    folder = llama_folder("published", vocab_size=200_000)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "modeling.py").write_text("raise SystemExit")
    (folder / "consolidated.safetensors").write_bytes(b"the same weights under other names")
    (folder / "original").mkdir()
    (folder / "original" / "params.json").write_text("{}")
    with Hub(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Calls `fetch` in a process of its own, for huggingface_hub reads its environment once."""

    def call(model: str, revision: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
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
        )

    return call


@pytest.fixture
def fetch(run: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """What `run` prints: the folder, or the error and its repair."""
    return lambda *arguments, **environment: run(*arguments, **environment).stdout.strip()


def test_a_snapshot_has_what_a_build_needs_and_nothing_that_runs(hub: Hub, fetch: Callable[..., str]) -> None:
    folder = Path(fetch("owner/model"))
    assert folder.name == COMMIT
    names = {path.name for path in folder.iterdir()}
    left = {"pytorch_model.bin", "modeling.py", "consolidated.safetensors", "original"}
    assert names == {path.name for path in hub.folder.iterdir()} - left
    assert all((folder / name).read_bytes() == (hub.folder / name).read_bytes() for name in names)
    assert fetch("owner/model", "v1") == str(folder)


def test_shards_are_those_that_the_index_names(hub: Hub, fetch: Callable[..., str]) -> None:
    model = LlamaForCausalLM.from_pretrained(hub.folder)
    (hub.folder / "model.safetensors").unlink()
    model.save_pretrained(hub.folder, max_shard_size="8MB")
    folder = Path(fetch("owner/model"))
    shards = {path.name for path in hub.folder.glob("model-*.safetensors")}
    assert len(shards) > 2
    assert {path.name for path in folder.glob("*.safetensors")} == shards


def test_progress_is_told_in_bytes_of_the_weights(
    hub: Hub, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    size = (hub.folder / "model.safetensors").stat().st_size
    told = run("owner/model").stderr.splitlines()
    assert told[0] == f"watched download owner/model {size}"
    assert sum(int(line.split()[1]) for line in told[1:] if line.startswith("arrived")) == size


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub: Hub, fetch: Callable[..., str]) -> None:
    hub.break_after = 15_000_000  # huggingface_hub writes chunks of 10 MiB: one is whole
    first = fetch("owner/model", COMMIT)
    assert first.startswith("owner/model: the download broke off")
    assert first.endswith("run the command again; it goes on where it stopped")
    folder = Path(fetch("owner/model", COMMIT))
    weights = folder / "model.safetensors"
    assert weights.read_bytes() == (hub.folder / "model.safetensors").read_bytes()
    assert f"GET /owner/model/resolve/{COMMIT}/model.safetensors bytes={10 << 20}-" in hub.asked


def test_nothing_is_downloaded_that_the_disk_cannot_hold(hub: Hub, fetch: Callable[..., str]) -> None:
    hub.sizes["model.safetensors"] = 10**15
    said = fetch("owner/model")
    assert "owner/model needs 1000000.00 GB more, and" in said
    assert "set HF_HOME" in said
    assert not [asked for asked in hub.asked if asked.endswith("model.safetensors")]


def test_weights_as_pickle_are_refused_before_they_are_downloaded(
    hub: Hub, fetch: Callable[..., str]
) -> None:
    (hub.folder / "model.safetensors").unlink()
    said = fetch("owner/model")
    assert said.startswith("owner/model: holds its weights as pickle (pytorch_model.bin)")
    assert "save_pretrained(new_folder)" in said
    (hub.folder / "pytorch_model.bin").unlink()
    assert fetch("owner/model").startswith("owner/model: has no model.safetensors")
    assert not [asked for asked in hub.asked if asked.endswith(".bin")]


def test_a_private_model_is_downloaded_with_the_token(fetch: Callable[..., str]) -> None:
    assert Path(fetch("owner/private", HF_TOKEN="right")).name == COMMIT


def test_a_pinned_commit_needs_no_network_once_it_is_whole(hub: Hub, fetch: Callable[..., str]) -> None:
    folder = fetch("owner/model", COMMIT)
    hub.asked.clear()
    assert fetch("owner/model", COMMIT) == folder
    assert hub.asked == []
    assert fetch("owner/model", COMMIT, HF_HUB_OFFLINE="1") == folder
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
        ("owner/private", "", {}, "for a private model: hf auth login, or set HF_TOKEN"),
        ("owner/private", "", {"HF_TOKEN": "other"}, "take a token that may read it"),
        ("owner/private", "", {"HF_TOKEN": "wrong"}, "does not accept the token of this machine"),
        ("owner/private", "", {"HF_TOKEN": "weak"}, "the token of this machine may not read this model"),
        ("owner/gated", "", {}, "accept its terms at https://huggingface.co/owner/gated"),
        ("owner/model", "v2", {}, "has no revision v2"),
        ("a/b/c", "", {}, "neither a folder nor the name of a model"),
        (
            "owner/model",
            "",
            {"HF_HUB_OFFLINE": "1"},
            "is not whole on this machine, and HF_HUB_OFFLINE is set",
        ),
        ("owner/model", COMMIT, {"HF_ENDPOINT": "http://127.0.0.1:9"}, "the Hub cannot be reached"),
    ],
)
def test_what_the_hub_refuses_is_one_clear_error(
    fetch: Callable[..., str], model: str, revision: str, environment: dict[str, str], said: str
) -> None:
    output = fetch(model, revision, **environment)
    assert output.startswith(f"{model}: ")
    assert said in output


def test_a_model_that_is_half_there_offline(hub: Hub, fetch: Callable[..., str]) -> None:
    folder = Path(fetch("owner/model"))
    assert fetch("owner/model", HF_HUB_OFFLINE="1") == str(folder)
    assert fetch("owner/model", HF_ENDPOINT="http://127.0.0.1:9") == str(folder)
    (folder / "model.safetensors").unlink()
    said = fetch("owner/model", HF_HUB_OFFLINE="1")
    assert said.startswith("owner/model: is not whole on this machine, and HF_HUB_OFFLINE is set")
    said = fetch("owner/model", HF_ENDPOINT="http://127.0.0.1:9")
    assert said.startswith("owner/model: is not whole on this machine, and the Hub cannot be reached")
