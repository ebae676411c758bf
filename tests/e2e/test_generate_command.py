"""`trtspec generate` against a real server, and without one."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from tests.e2e.conftest import DEADLINE_S, ENDLESS, IN_PROCESS, Deploy, Until
from tests.support.command_line import trtspec
from trtspec.client.client import Client
from trtspec.client.endpoint import ChatMessage
from trtspec.client.local_server import find_servers
from trtspec.client.scrape import read

PROMPT = "def read_lines(path):\n    "
COMMAND = (str(Path(sys.prefix, "bin", "trtspec")), "generate")


def generate(*words: str | bytes) -> subprocess.CompletedProcess[str]:
    return trtspec("generate", *map(os.fsdecode, words))


@IN_PROCESS
def test_text_is_data_and_speed_is_talk(server: Deploy) -> None:
    said = generate("--url", server.grpc_url, "--max-tokens", "30", PROMPT)

    assert said.returncode == 0
    assert said.stdout == server.generate(PROMPT, max_tokens=30) + "\n"
    assert re.fullmatch(r"30 tokens, \d+ tokens/s, \d+ of \d+ draft tokens accepted \(\d+%\)\n", said.stderr)


@IN_PROCESS
def test_deploy_tells_where_it_is(server: Deploy, tiny_build: Path) -> None:
    (found,) = (one for one in find_servers() if one.build == str(tiny_build.resolve()))

    assert (found.grpc, found.openai, found.is_ready) == (server.grpc_url, server.api, True)
    assert "num_requests_running" in read(found.metrics)


@IN_PROCESS
def test_a_chat_goes_through_the_template_and_keeps_what_was_said(
    server: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--url", server.api, "--max-tokens", "12")
    monkeypatch.setattr("sys.stdin", StringIO("class Stack:\n\nclass Queue:\n/quit\nnever asked\n"))
    said = trtspec("chat", *words)
    client, said_before = Client(server.api), list[ChatMessage]()
    for question in ("class Stack:", "class Queue:"):
        said_before.append(ChatMessage("user", question))
        answer = client.generate(said_before, max_tokens=12).text
        said_before.append(ChatMessage("assistant", answer))

    assert said.returncode == 0
    assert said.stdout == "".join(f"{each.text}\n" for each in said_before if each.role == "assistant")
    assert said.stderr.count("draft tokens accepted") == 2
    assert generate(*words, "--chat", "class Stack:").stdout == f"{said_before[1].text}\n"


@IN_PROCESS
def test_a_conversation_that_is_too_long_can_begin_anew(
    server: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("/help", "class Stack:", "x = 1 " * 3000, "/reset", "class Stack:", "/exit", "never asked")
    monkeypatch.setattr("sys.stdin", StringIO("".join(f"{line}\n" for line in lines)))
    said = trtspec("chat", "--url", server.api, "--max-tokens", "6", "--temperature", "0")

    first, second = said.stdout[: len(said.stdout) // 2], said.stdout[len(said.stdout) // 2 :]
    assert (said.returncode, first) == (0, second)
    assert first.strip()
    assert "error: " in said.stderr
    assert "hint: if the conversation is too long, /reset begins a new one\n" in said.stderr
    assert "/exit   leaves" in said.stderr


@IN_PROCESS
def test_ctrl_c_ends_an_answer_and_not_the_chat(server: Deploy, until: Until) -> None:
    words = ("--url", server.api, "--max-tokens", str(ENDLESS), "--temperature", "1")
    pipe = subprocess.PIPE
    process = subprocess.Popen([COMMAND[0], "chat", *words], stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"class Stack:\n")
    process.stdin.flush()
    assert process.stdout.read(1)

    process.send_signal(signal.SIGINT)

    until(lambda: server.metric("num_requests_running") == 0, "no request running")
    _, talk = process.communicate(b"/quit\n", timeout=DEADLINE_S)
    assert (process.returncode, talk) == (0, b"ended\n")


@IN_PROCESS
def test_without_a_stream_the_text_is_the_same(server: Deploy) -> None:
    words = ("--url", server.grpc_url, "--max-tokens", "30", PROMPT)

    assert generate("--no-stream", *words).stdout == generate(*words).stdout


@IN_PROCESS
def test_the_target_alone_drafts_nothing(server: Deploy) -> None:
    said = generate("--url", server.grpc_url, "--max-tokens", "8", "--num-draft-tokens", "0", PROMPT)

    assert "nothing drafted" in said.stderr


@IN_PROCESS
def test_json_has_all_of_it(server: Deploy) -> None:
    said = json.loads(generate("--url", server.grpc_url, "--max-tokens", "30", "--json", PROMPT).stdout)

    assert said["text"] == server.generate(PROMPT, max_tokens=30)
    assert said["num_output_tokens"] == 30
    assert 0 < said["first_text_s"] <= said["seconds"]
    rate = said["total_accepted_draft_tokens"] / said["total_draft_tokens"]
    assert abs(said["acceptance_rate"] - rate) < 1e-6


@IN_PROCESS
def test_options_reach_the_server(server: Deploy) -> None:
    text = server.generate(PROMPT, max_tokens=30, temperature=1.0, top_k=20, top_p=0.9, seed=3)
    words = ("--temperature", "1", "--top-k", "20", "--top-p", "0.9", "--seed", "3")

    assert generate("--url", server.grpc_url, "--max-tokens", "30", *words, PROMPT).stdout == text + "\n"
    stop = text[5:8]
    said = generate("--url", server.grpc_url, "--max-tokens", "30", *words, "--stop", stop, PROMPT)
    assert said.stdout == text[: text.index(stop)] + "\n"


@IN_PROCESS
def test_ctrl_c_ends_the_request(server: Deploy, until: Until) -> None:
    words = (
        "--url",
        server.grpc_url,
        "--max-tokens",
        str(ENDLESS),
        "--temperature",
        "1",
        "--num-draft-tokens",
        "1",
    )
    process = subprocess.Popen([*COMMAND, *words, PROMPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(1)

    process.send_signal(signal.SIGINT)

    _, talk = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert b"Traceback" not in talk
    until(lambda: server.metric("num_requests_running") == 0, "no request running")


def test_no_server_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    said = generate("--url", f"127.0.0.1:{port}", PROMPT)

    assert said.returncode == 1
    assert said.stderr.startswith(f"error: http://127.0.0.1:{port}: does not answer")
    assert "trtspec deploy" in said.stderr
    assert "Traceback" not in said.stderr


@IN_PROCESS
def test_another_model_is_named(server: Deploy) -> None:
    said = generate("--url", server.grpc_url, "--model-name", "other", PROMPT)

    assert said.returncode == 1
    assert "has no model other that is ready" in said.stderr


@IN_PROCESS
def test_a_refusal_is_the_servers_line(server: Deploy) -> None:
    said = generate("--url", server.grpc_url, "--num-draft-tokens", "9", PROMPT)

    assert said.returncode == 1
    line = "num_draft_tokens is 9; it must be 0 to 8, the target engine's max_draft_len"
    assert f"error: {server.grpc_url}: {line}" in said.stderr


@IN_PROCESS
def test_bytes_that_are_no_text_are_the_servers_to_refuse(server: Deploy) -> None:
    for words in ((b"ab\xff",), ("--stop", b"\xff", PROMPT)):
        said = generate("--url", server.grpc_url, *words)

        assert said.returncode == 1
        assert "is not UTF-8 at byte" in said.stderr
        assert "Traceback" not in said.stderr


@pytest.mark.parametrize("option", ["--max-tokens", "--num-draft-tokens", "--top-k", "--seed"])
def test_a_number_that_no_tensor_holds_is_wrong_usage(option: str) -> None:
    said = generate(option, str(2**64 + 1), PROMPT)

    assert said.returncode == 2
    assert option in said.stderr


@IN_PROCESS
def test_a_temperature_over_32_bits_is_the_servers_to_refuse(server: Deploy) -> None:
    said = generate("--url", server.grpc_url, "--temperature", "1e39", PROMPT)

    assert said.returncode == 1
    assert said.stderr.startswith(f"error: {server.grpc_url}: temperature is inf")


def test_wrong_usage_is_2() -> None:
    assert generate().returncode == 2
    assert generate("--max-tokens", "0", PROMPT).returncode == 2
