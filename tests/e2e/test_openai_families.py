"""Answers of the families of models through `trtspec serve`: they come a token at a time from a real model.

Whole ones are made with drafts, and read the same.

A grammar makes the tiny pair say what was recorded. It comes in between the API and Triton, because a request
of the API that asks for one has no reasoning.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from pathlib import Path
from threading import Thread
from typing import Any

import openai
import pytest

from tests.e2e.conftest import DEADLINE_S, ONLY_IN_PROCESS, Deploy
from tests.e2e.openai_requests import MODEL, serving
from tests.e2e.test_openai_serve import tokenizer
from tests.unit.gateway.openai.recordings import RECORDINGS, Parsed
from tests.unit.gateway.openai.test_output_parser import TOOLS

FAMILIES = [row for row in RECORDINGS if row[1] == "deepseek_r1" or (row[0] and row[1] is None)]


class Saying(ThreadingHTTPServer):
    """Triton at that port, whose model says `text` whatever it is asked."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.port, self.text, self.pieces = port, "", list[str]()


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Saying

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        grammar = f"root ::= {json.dumps(self.server.text)}"
        asked |= {"guided_decoding_guide_type": "ebnf_grammar", "guided_decoding_guide": grammar}
        triton = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=DEADLINE_S)
        triton.request("POST", self.path, json.dumps(asked), {"Content-Type": "application/json"})
        with triton.getresponse() as answer:
            self.send_response(answer.status)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in answer:
                for part in (
                    self._parts(line) if asked.get("stream") and line.startswith(b"data:") else [line]
                ):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")

    def _parts(self, line: bytes) -> Iterator[bytes]:
        """Triton gives a slow client the text of several tokens at once: here each character is an event."""
        said = json.loads(line[5:])
        text = said["text_output"]
        self.server.pieces += text
        for character in text[:-1]:
            yield b"data: %b\n\n" % json.dumps({"text_output": character}).encode()
        yield b"data: %b\n" % json.dumps(said | {"text_output": text[-1:]}).encode()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def saying(port: int) -> Iterator[Saying]:
    with Saying(port) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def parts(message: Any) -> Parsed:
    calls = message.tool_calls or []
    found = [(call.function.name, json.loads(call.function.arguments)) for call in calls]
    return getattr(message, "reasoning_content", None) or "", message.content or "", found


def streamed(client: openai.OpenAI, asked: dict[str, Any]) -> Parsed:
    """What a client puts together of the chunks."""
    reasoning, content, calls = "", "", dict[int, list[str]]()
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                assert call.function
                name, arguments = calls.setdefault(call.index, ["", ""])
                calls[call.index] = [
                    name + (call.function.name or ""),
                    arguments + (call.function.arguments or ""),
                ]
    return reasoning, content, [(name, json.loads(arguments)) for name, arguments in calls.values()]


@pytest.mark.sweep
# With layout bls a guided text is one piece: its model cannot resume a guide.
@ONLY_IN_PROCESS
def test_answers_of_the_families_are_read_a_character_at_a_time(
    server: Deploy, tiny_build: Path, tmp_path: Path
) -> None:
    with saying(server.ports[0]) as model:
        for number, ((marks, parser), rows) in enumerate(groupby(FAMILIES, lambda row: row[:2])):
            template = f"{{{{ messages[0].content }}}}{{# tools {marks} #}}"
            options = ["--tokenizer", tokenizer(tiny_build, tmp_path / f"tokenizer{number}", template)]
            options += ["--reasoning-parser", parser] if parser else []
            url, said = f"http://127.0.0.1:{model.server_port}", tmp_path / f"said{number}"
            with (
                serving(url, *options, said=said) as port,
                openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client,
            ):
                for _, _, prompt, text, expected in rows:
                    model.text, model.pieces = text, []
                    messages = [{"role": "user", "content": f"a{prompt}"}]
                    asked: dict[str, Any] = {"model": MODEL, "messages": messages, "tools": TOOLS}
                    asked |= {"temperature": 0, "max_tokens": 512}
                    assert streamed(client, asked) == expected
                    assert model.pieces == [*text]
                    whole = client.chat.completions.create(**asked)
                    (choice,) = whole.choices
                    assert parts(choice.message) == expected
                    assert choice.finish_reason == ("tool_calls" if expected[2] else "stop")
