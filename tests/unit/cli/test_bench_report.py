"""What `trtspec bench` writes for who was not there."""

from __future__ import annotations

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.fakes.bench_result import result
from tests.support.command_line import trtspec
from trtspec.measure.bench.result import Arms, read
from trtspec.measure.commands import bench


def test_a_run_that_measured_nothing_has_no_report(tmp_path: Path) -> None:
    assert list(bench._report(replace(result(), levels=()), tmp_path)) == []
    assert list(bench._report(result(), tmp_path)) == [tmp_path / "report.html"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


class OutOfLuck(BaseHTTPRequestHandler):
    """Has a model, and fails each request."""

    def do_GET(self) -> None:
        self._say(200, b'{"object": "list", "data": [{"id": "m", "object": "model"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._say(500, b'{"error": {"message": "out of luck"}}')

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_a_run_of_which_every_request_failed_has_failed(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), OutOfLuck) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        few = ("--streams", "1", "--block-prompts", "1", "--output", "run")
        done = trtspec("bench", "--url", url, *few, folder=tmp_path)
        server.shutdown()
    assert done.returncode == 1
    assert "every request failed" in done.stderr
    assert "out of luck" in done.stderr
    assert read(tmp_path / "run").is_unanswered


def test_a_run_of_which_one_request_was_answered_has_not_failed() -> None:
    assert not result().is_unanswered
    [level, *_] = result().levels
    plain, spoilt = (
        level.arms.plain,
        replace(level.arms.speculative, errors={"failed": level.arms.speculative.requests}),
    )
    assert plain
    for arms, is_unanswered in (
        (Arms(spoilt, plain), False),
        (Arms(spoilt, replace(plain, errors={"failed": plain.requests - 1})), False),
        (Arms(spoilt, replace(plain, errors={"failed": plain.requests})), True),
    ):
        assert replace(result(), levels=(replace(level, arms=arms),)).is_unanswered == is_unanswered
    assert not replace(result(), levels=()).is_unanswered


@pytest.mark.parametrize("key", ["--api-key-file", "--baseline-api-key-file"])
def test_a_key_is_refused_with_aiperf(tmp_path: Path, key: str) -> None:
    (tmp_path / "key").write_text("sk-mine")
    servers = ("--url", "http://127.0.0.1:1", "--baseline", "http://127.0.0.1:2")
    done = trtspec("bench", *servers, "--with", "aiperf", "--tokenizer", "t", key, "key", folder=tmp_path)
    assert done.returncode == 2
    assert "aiperf takes the key on its command line" in done.stderr


def test_an_output_that_is_a_file_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("mine")
    done = trtspec("bench", "--url", "http://127.0.0.1:1", "--output", "results", folder=tmp_path)
    assert done.returncode == 2
    assert "'--output': dir 'results' is a file" in done.stderr
