"""Comments of pull requests, on a stand-in for the APIs of GitHub and GitLab."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner, Result

from trtspec.base.errors import UnavailableError
from trtspec.cli.app import app

GITHUB = "/repos/me/models/issues/7/comments"
GITLAB = "/projects/9/merge_requests/7/notes"


class Api(ThreadingHTTPServer):
    """Keeps the comments of one request; with `status` it refuses everything."""

    def __init__(self) -> None:
        self.comments = [{"id": number, "body": "looks good"} for number in range(1, 131)]
        self.asked: list[tuple[str, str, str | None]] = []
        self.status = 200
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        page, size = int(query["page"][0]), int(query["per_page"][0])
        self.answer(self.server.comments[(page - 1) * size : page * size])

    def do_POST(self) -> None:
        self.server.comments.append({"id": 900, "body": self.body()["body"]})
        self.answer({}, 201)

    def do_PATCH(self) -> None:
        number = int(self.path.rpartition("/")[2])
        (known,) = [each for each in self.server.comments if each["id"] == number]
        known["body"] = self.body()["body"]
        self.answer({})

    do_PUT = do_PATCH

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, value: Any, status: int = 200) -> None:
        token = self.headers["Authorization"] or self.headers["PRIVATE-TOKEN"]
        self.server.asked.append((self.command, urlsplit(self.path).path, token))
        self.send_response(status if self.server.status == 200 else self.server.status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(params=["github", "gitlab"])
def job(request: pytest.FixtureRequest, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 7}}))
    (tmp_path / "summary.md").write_text("### Proven\n")
    environment = {
        "github": {
            "GITHUB_ACTIONS": "true",
            "GITHUB_EVENT_PATH": str(event),
            "GITHUB_API_URL": api.url,
            "GITHUB_REPOSITORY": "me/models",
            "GITHUB_TOKEN": "secret",
        },
        "gitlab": {
            "GITHUB_ACTIONS": "",
            "GITLAB_CI": "true",
            "CI_API_V4_URL": api.url,
            "CI_PROJECT_ID": "9",
            "CI_MERGE_REQUEST_IID": "7",
            "PROVE_TOKEN": "secret",
        },
    }[request.param]
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    name: str = request.param
    return name


def post(*words: str) -> Result:
    return CliRunner().invoke(app, ["ci", "post", "summary.md", *words])


def test_a_comment_is_posted_once_and_then_replaced(job: str, api: Api) -> None:
    assert "posted a comment" in post().stderr
    Path("summary.md").write_text("### Refuted\n")
    assert "replaced the comment" in post().stderr
    assert "posted a comment" in post("--name", "another").stderr
    assert [each["body"] for each in api.comments[130:]] == [
        "<!-- trtspec prove -->\n### Refuted\n",
        "<!-- trtspec another -->\n### Refuted\n",
    ]
    path = GITHUB if job == "github" else GITLAB
    token = "Bearer secret" if job == "github" else "secret"
    assert api.asked[:2] == [("GET", path, token)] * 2, "130 comments are two pages"
    assert [method for method, *_ in api.asked if method != "GET"] == [
        "POST",
        "PATCH" if job == "github" else "PUT",
        "POST",
    ]


def test_a_token_that_may_not_comment_is_a_warning(job: str, api: Api) -> None:
    api.status = 403
    done = post()
    assert done.exit_code == 0
    assert "nothing was posted" in done.stderr


def test_an_api_that_fails_is_an_error(job: str, api: Api) -> None:
    api.status = 500
    assert isinstance(post().exception, UnavailableError)


def test_outside_of_a_pull_request_it_says_so(
    job: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "event.json").write_text("{}")
    monkeypatch.setenv("CI_MERGE_REQUEST_IID", "")
    assert "request" in str(post().exception)
    monkeypatch.setenv("GITHUB_ACTIONS", "")
    monkeypatch.setenv("GITLAB_CI", "")
    assert "is no job" in str(post().exception)
