"""A Hub on the loopback interface, as far as `huggingface_hub` needs one."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

from huggingface_hub.utils._http import reset_sessions

COMMIT = "0123456789" * 4


class Hub(ThreadingHTTPServer):
    """Serves `owner/model` from a folder and `owner/private` to the token "right"; knows `owner/gated`.

    `folders` has those of further models by name, and `listed` what lists of models show of each.

    `asked` has the requests as `METHOD path`, with the range if one was asked for. The next download of a
    file ends after `break_after` bytes, if that is set; `sizes` are lies about files.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.asked = folder, list[str]()
        self.folders: dict[str, Path] = {}
        self.listed: dict[str, dict[str, Any]] = {}
        self.break_after: int | None = None
        self.sizes: dict[str, int] = {}

    def __enter__(self) -> Hub:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def environment(self, home: Path) -> dict[str, str]:
        """Of a process that is to ask this Hub and no other, with a cache of its own."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        endpoint = f"http://127.0.0.1:{self.server_port}"
        return {**inherited, **quiet, "HF_ENDPOINT": endpoint, "HF_HOME": str(home)}

    @contextmanager
    def asked_here(self, home: Path, **environment: str) -> Iterator[None]:
        """Makes this process one of that environment, which huggingface_hub reads at its import alone."""
        given = self.environment(home) | environment
        url = f"{given['HF_ENDPOINT']}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        values: dict[str, Any] = {
            "ENDPOINT": given["HF_ENDPOINT"],
            "HUGGINGFACE_CO_URL_TEMPLATE": url,
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_HUB_OFFLINE": "HF_HUB_OFFLINE" in given,
            "HF_TOKEN_PATH": str(home / "token"),
        }
        with (
            patch.dict(os.environ, given, clear=True),
            patch.multiple("huggingface_hub.constants", **values),
            patch("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", url),
        ):
            reset_sessions()  # One that an offline test has made would stay offline.
            yield
        reset_sessions()


class Handler(BaseHTTPRequestHandler):
    """The part of the Hub's API that `huggingface_hub` needs to download a model."""

    server: Hub
    folder: Path
    """That of the model that was asked for."""

    def do_HEAD(self) -> None:
        self.server.asked.append(" ".join([self.command, self.path, self.headers.get("Range", "")]).rstrip())
        path = self.path.partition("?")[0]
        model = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token == "wrong":
            self._send(401, b'{"error": "Invalid credentials in Authorization header"}')
        elif token == "weak":
            self._send(403, b"{}")
        elif path == "/api/models":
            self._list()
        elif model == "owner/gated" or self.server.listed.get(model, {}).get("gated"):
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif (
            model == "owner/model"
            or model in self.server.folders
            or (model == "owner/private" and token == "right")
        ):
            self.folder = self.server.folders.get(model, self.server.folder)
            if path == f"/api/models/{model}":
                self._send(200, json.dumps(self._entry(model)).encode())
            else:
                self._answer(path.split(f"{model}/")[-1])
        else:
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_GET = do_POST = do_HEAD

    def _list(self) -> None:
        """As `/api/models` does: by author, by a part of the name and by tags, the most downloaded first."""
        asked = parse_qs(urlsplit(self.path).query)
        found = [
            entry
            for entry in map(self._entry, self.server.listed)
            if entry["id"].startswith(asked.get("author", [""])[0])
            and asked.get("search", [""])[0] in entry["id"].lower()
            and set(asked.get("filter", [])) <= set(entry["tags"])
        ]
        found.sort(key=lambda entry: -entry["downloads"])
        self._send(200, json.dumps(found[: int(asked["limit"][0])]).encode())

    def _entry(self, model: str) -> dict[str, Any]:
        return {"id": model, "sha": COMMIT, "tags": [], "downloads": 0, **self.server.listed.get(model, {})}

    def _answer(self, asked: str) -> None:
        what, _, rest = asked.partition("/")
        revision, _, name = rest.partition("/")
        if revision not in ("main", "v1", COMMIT):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif what == "revision":
            files = [{"rfilename": str(path.relative_to(self.folder))} for path in self._files()]
            self._send(200, json.dumps({"id": "owner/model", "sha": COMMIT, "siblings": files}).encode())
        elif what == "tree":
            self._send(200, json.dumps([self._info(path) for path in self._files()]).encode())
        elif what == "paths-info":
            names = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["paths"]
            paths = [self.folder / name for name in names]
            self._send(200, json.dumps([self._info(path) for path in paths if path.is_file()]).encode())
        elif not (self.folder / name).is_file():
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        else:
            self._send_file(self.folder / name)

    def _files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]

    def _info(self, path: Path) -> dict[str, Any]:
        size = self.server.sizes.get(path.name, path.stat().st_size)
        lfs = {"oid": digest(path), "size": size, "pointerSize": 134}
        name = str(path.relative_to(self.folder))
        return {"type": "file", "path": name, "oid": "0" * 40, "size": size, "lfs": lfs}

    def _send_file(self, path: Path) -> None:
        content, headers = path.read_bytes(), {"ETag": f'"{digest(path)}"', "X-Repo-Commit": COMMIT}
        if asked := self.headers.get("Range"):
            first, _, last = asked.lower().removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            self._send(206, content[start : end + 1], headers)
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
