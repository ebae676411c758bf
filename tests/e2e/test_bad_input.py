"""A bad request is one clear line for its client, and nothing to the others."""

from __future__ import annotations

import gzip
import math
import queue
import re
import select
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpc

from tests.e2e.conftest import DEADLINE_S, ENDLESS, IN_PROCESS, Deploy, wait_until
from tests.support.processes import numbers_of
from trtspec.base.errors import ServerError
from trtspec.serving.triton.agreement import NOT_UNICODE

pytestmark = IN_PROCESS

PROMPT = "import os\n"

# What is sent, and what the line must name.
REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no text": ({"max_tokens": 4}, ["text_input is missing"]),
    "token ids of no token": ({"input_ids": [1, 10**6]}, ["input_ids is 1000000", "0 to"]),
    "no token ids": ({"input_ids": []}, ["input_ids"]),
    "text and token ids": ({"text_input": PROMPT, "input_ids": [1]}, ["together with input_ids"]),
    "empty text": ({"text_input": ""}, ["text_input is empty"]),
    "two texts": ({"text_input": ["a", "b"]}, ["batch"]),
    "max_tokens 0": ({"text_input": PROMPT, "max_tokens": 0}, ["max_tokens is 0", "at least 1"]),
    "max_tokens below 0": ({"text_input": PROMPT, "max_tokens": -5}, ["max_tokens is -5"]),
    "prompt over the limit": ({"text_input": "x = 1\n" * ENDLESS}, ["text_input is", "tokens"]),
    "megabytes of prompt": ({"text_input": "x" * 15_000_000}, ["text_input is 15000000 characters"]),
    "temperature NaN": ({"text_input": PROMPT, "temperature": math.nan}, ["temperature is nan"]),
    "temperature below 0": ({"text_input": PROMPT, "temperature": -1.0}, ["temperature is -1.0"]),
    "top_p over 1": ({"text_input": PROMPT, "top_p": 1.5}, ["top_p is 1.5"]),
    "top_k below 0": ({"text_input": PROMPT, "top_k": -1}, ["top_k is -1"]),
    "K over the engine's": (
        {"text_input": PROMPT, "num_draft_tokens": 9},
        ["num_draft_tokens is 9", "0 to 8"],
    ),
    "end_id of no token": ({"text_input": PROMPT, "end_id": 10**6}, ["end_id is 1000000"]),
    "a typing error": ({"text_input": PROMPT, "max_token": 4}, ["max_token is not an input", "max_tokens?"]),
    "an input of nobody": ({"text_input": PROMPT, "xyzzy": 4}, ["xyzzy is not an input of this model"]),
    "beams": ({"text_input": PROMPT, "beam_width": 2}, ["beam_width is 2", "must be 1"]),
    "draft logits": ({"text_input": PROMPT, "use_draft_logits": True}, ["use_draft_logits is true"]),
    "bad words": ({"text_input": PROMPT, "bad_words": ["x" * 2000]}, ["bad_words is a string of 2000"]),
    "logits": ({"text_input": PROMPT, "return_context_logits": True}, ["return_context_logits is true"]),
    "a guide of no type": ({"text_input": PROMPT, "guided_decoding_guide": "{}"}, ["without a type"]),
    "too many stop words": ({"text_input": PROMPT, "stop_words": ["a"] * 65}, ["stop_words is 65 strings"]),
}


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
@pytest.mark.parametrize(("body", "names"), REFUSED.values(), ids=REFUSED)
def test_a_bad_value_is_a_400_with_one_line(
    server: Deploy, body: dict[str, Any], names: list[str], verb: str
) -> None:
    status, answer = server.post({**body, "stream": verb == "generate_stream"}, verb)
    (event,) = answer if verb == "generate_stream" else [answer]

    assert status == 400
    assert event.keys() == {"error"}
    for name in names:
        assert name in event["error"]
    assert "\n" not in event["error"]
    assert "Traceback" not in event["error"]
    assert len(event["error"]) < 200


def test_invalid_utf8_is_named_with_its_place(server: Deploy) -> None:
    status, answer = server.post(b'{"text_input": "ab\xff\xfe", "max_tokens": 4}')

    assert status == 400
    assert answer["error"] == "text_input is not UTF-8 at byte 2; it must be valid UTF-8"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"text_input": 3}',
        b'{"text_input": "\\ud800"}',
        b'{"text_input": "a", "max_tokens": "4"}',
        b"null",
        b"[]",
        b"3",
        b'"a"',
        b'{"text_input": "a", "parameters": "NaN"}',
        b'{"text_input": "a", "parameters": null}',
        b'{"text_input": "a", "parameters": {"max_tokens": "x"}}',
        b'{"text_input": "a", "\\u0000": 1}',
    ],
)
def test_triton_refuses_bodies_of_wrong_json_types_and_goes_on_serving(server: Deploy, body: bytes) -> None:
    status, answer = server.post(body)

    assert status == 400
    assert "\n" not in answer["error"]
    assert server.generate(PROMPT, max_tokens=2)


UNREADABLE = {
    "an id": b'{"text_input": "a", "id": "\xff"}',
    "half a character as an id": b'{"text_input": "a", "id": "\\udc00"}',
    "a key": b'{"text_input": "a", "\xed\xa0\x80": 1}',
    "the text of a parameter": b'{"text_input": "a", "xyzzy": "\xff"}',
    "a key of a parameter": b'{"text_input": "a", "parameters": {"\xff": 1}}',
}


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
@pytest.mark.parametrize("name", UNREADABLE)
def test_the_model_counts_text_that_is_not_unicode_and_refuses_it_in_one_line(
    server: Deploy, name: str, verb: str
) -> None:
    counted, in_front = counted_by_the_model(server), counted_by_the_front(server)
    status, answer = server.post(UNREADABLE[name], verb)
    (event,) = answer if verb == "generate_stream" else [answer]

    assert (status, event) == (400, {"error": NOT_UNICODE})
    wait_until(lambda: counted_by_the_model(server) > counted, "one more refusal")
    assert counted_by_the_front(server) == in_front


def counted_by_the_front(server: Deploy) -> float:
    return server.metric("front_refusals", api="triton", reason="invalid_request")


def counted_by_the_model(server: Deploy) -> float:
    """This may be a second old."""
    return server.metric("request_errors", kind="invalid_request")


def test_a_header_that_is_not_unicode_is_one_line_that_the_model_counts(server: Deploy) -> None:
    counted, in_front = counted_by_the_model(server), counted_by_the_front(server)
    head = f"POST /v2/models/{server.model}/generate HTTP/1.1\r\nHost: localhost\r\n".encode()
    answer = said(
        server, head + b'Content-Length: 19\r\nX-Request-Id: \xff\xfe\r\n\r\n{"text_input": "a"}\r\n'
    )

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert NOT_UNICODE.encode() in answer
    wait_until(lambda: counted_by_the_model(server) > counted, "one more refusal")
    assert counted_by_the_front(server) == in_front


def test_text_that_is_not_unicode_ends_no_other_request(server: Deploy) -> None:
    alone = server.generate(PROMPT, max_tokens=30)
    with ThreadPoolExecutor(12) as pool:
        refused = [pool.submit(server.post, body) for body in list(UNREADABLE.values()) * 8]
        served = [pool.submit(server.generate, PROMPT, max_tokens=30) for _ in range(12)]
        assert {answer.result()[0] for answer in refused} == {400}
        assert {answer.result() for answer in served} == {alone}


def said(server: Deploy, request: bytes, port: int = 0) -> bytes:
    """The beginning of the answer to the bytes of a request."""
    with socket.create_connection(("127.0.0.1", server.ports[port]), timeout=DEADLINE_S) as line:
        line.sendall(request)
        return line.recv(4096)


MALFORMED = {
    "no header": b"POST /v2/models/m/generate HTTP/1.1\r\nHost x\r\n\r\n",
    "no length": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: abc\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "no chunks": b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "no version": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "a long header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    "a long path": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no path": b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
BROKEN_BODIES = {
    "no gzip": b"Content-Encoding: gzip\r\nContent-Length: 19\r\n\r\n" + b'{"text_input": "a"}',
    "no deflate": b"Content-Encoding: deflate\r\nContent-Length: 19\r\n\r\n" + b'{"text_input": "a"}',
}


@pytest.mark.parametrize("port", [0, 2])
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_head_is_a_400_that_leaves_no_trace_in_the_log(
    server: Deploy, name: str, port: int
) -> None:
    counted, log = counted_by_the_front(server), server.said.read_bytes()
    answer = said(server, MALFORMED[name], port)

    assert re.match(rb"HTTP/1\.[01] 400 ", answer)
    assert b'{"error": "the request cannot be read: ' in answer
    assert counted_by_the_front(server) == counted + (port == 0)
    assert server.said.read_bytes() == log


@pytest.mark.parametrize("name", BROKEN_BODIES)
def test_a_body_of_another_coding_is_a_400_that_leaves_no_trace_in_the_log(server: Deploy, name: str) -> None:
    counted, log = counted_by_the_front(server), server.said.read_bytes()
    start = f"POST /v2/models/{server.model}/generate HTTP/1.1\r\nHost: localhost\r\n".encode()
    answer = said(server, start + BROKEN_BODIES[name])

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'{"error": "the body does not match its Content-Encoding' in answer
    assert counted_by_the_front(server) == counted + 1
    assert server.generate(PROMPT, max_tokens=2)
    assert server.said.read_bytes() == log


def test_a_compressed_body_is_read(server: Deploy) -> None:
    body = gzip.compress(b'{"text_input": "import os\\n", "max_tokens": 2}')
    head = f"POST /v2/models/{server.model}/generate HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Length: {len(body)}\r\n"
    assert said(server, f"{head}Content-Encoding: gzip\r\n\r\n".encode() + body).startswith(b"HTTP/1.1 200 ")


MIB = 1 << 20
PIECE = bytes(MIB)


def post_zeros(server: Deploy, size: int, kind: str, is_chunked: bool) -> tuple[bytes, int]:
    """The head of the answer to a body that is never whole in memory, and how much of it could be sent."""
    length = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {size}"
    start = f"POST /v2/models/{server.model}/generate HTTP/1.1\r\nHost: localhost\r\n"
    head = f"{start}Content-Type: {kind}\r\n{length}\r\n\r\n"
    piece = b"%x\r\n%s\r\n" % (MIB, PIECE) if is_chunked else PIECE
    with socket.create_connection(("127.0.0.1", server.ports[0]), timeout=DEADLINE_S) as line:
        line.sendall(head.encode())
        sent = 0
        try:
            while sent < size and not select.select([line], [], [], 0)[0]:
                line.sendall(piece)
                sent += MIB
        except ConnectionError:
            pass
        return line.recv(4096), sent


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("kind", ["application/octet-stream", "application/json", "x/y"])
@pytest.mark.parametrize("mebibytes", [32, 200, 1024])
def test_a_large_body_is_refused_before_it_is_here(
    server: Deploy, mebibytes: int, kind: str, is_chunked: bool
) -> None:
    head, sent = post_zeros(server, mebibytes * MIB, kind, is_chunked)

    assert head.startswith(b"HTTP/1.1 413 ")
    assert b'{"error": "the body has more than 16777216 bytes"}' in head
    assert sent < 100 * MIB
    assert server.generate(PROMPT, max_tokens=2)


@pytest.mark.parametrize("api", [False, True])
def test_a_refused_body_that_is_still_sent_does_not_reset_the_answer(server: Deploy, api: bool) -> None:
    """A reset can overtake the answer, or end a client's sending before it looks for one."""
    port = server.api_port if api else server.ports[0]
    path = "/v1/completions" if api else f"/v2/models/{server.model}/generate"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as line:
        line.sendall(f"{head}Content-Length: {64 * MIB}\r\n\r\n".encode() + PIECE)
        answer = b""
        while piece := line.recv(4096):
            answer += piece
        # This client is known to have been told, and is not waited for.
        line.settimeout(DEADLINE_S)
        with pytest.raises(ConnectionError):
            line.sendall(bytes(64 * MIB))

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"}")


def test_curl_sees_why(server: Deploy, tmp_path: Path) -> None:
    body = tmp_path / "body"
    with body.open("wb") as file:
        file.truncate(200 * MIB)
    url = f"http://127.0.0.1:{server.ports[0]}/v2/models/{server.model}/generate"
    for options in ([], ["-H", "Expect:"], ["-H", "Transfer-Encoding: chunked"]):
        command: list[str | Path] = [
            "curl",
            "-s",
            "-w",
            "%{http_code}",
            *options,
            "-X",
            "POST",
            "-T",
            body,
            url,
        ]
        said = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S).stdout
        assert said == '{"error": "the body has more than 16777216 bytes"}413'


def test_many_large_bodies_at_once_take_no_memory(server: Deploy) -> None:
    before = memory(server.process.pid)

    with ThreadPoolExecutor(16) as pool:
        heads = pool.map(lambda _: post_zeros(server, 1024 * MIB, "x/y", True)[0], range(32))
        assert {head[:12] for head in heads} == {b"HTTP/1.1 413"}

    # Bodies of 512 MiB may be held at once, and 32 GiB were sent.
    assert memory(server.process.pid) - before < 600 * MIB
    assert server.generate(PROMPT, max_tokens=2)


def memory(pid: int) -> int:
    """The most that a process has had in memory, in bytes."""
    return numbers_of(pid)["VmHWM"] * 1024


@pytest.mark.parametrize(
    "body", [b"[" * 8 * MIB, b'{"text_input":' * MIB, b'{"text_input": ["\\"", ' + b"[" * 10**6]
)
def test_brackets_in_brackets_are_refused(server: Deploy, body: bytes) -> None:
    status, answer = server.post(body)

    assert (status, answer) == (400, {"error": "the JSON is nested too deeply"})
    assert server.generate(PROMPT, max_tokens=2)


def test_brackets_in_texts_are_not(server: Deploy) -> None:
    status, answer = server.post({"text_input": '"[\\' * 10_000, "max_tokens": 2})

    assert status == 400
    assert "text_input is" in answer["error"]


def test_small_chunks_are_no_body_of_many_parts(server: Deploy) -> None:
    """Triton itself puts one in its stack for each."""
    head = f"POST /v2/models/{server.model}/generate HTTP/1.1\r\nHost: localhost\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.ports[0]), timeout=DEADLINE_S) as line:
        line.sendall(head.encode() + b"1\r\nx\r\n" * 10**6 + b"0\r\n\r\n")
        assert line.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert server.generate(PROMPT, max_tokens=2)


def test_a_stream_that_is_asked_of_generate_is_an_error(server: Deploy) -> None:
    status, answer = server.post({"text_input": PROMPT, "max_tokens": 40, "end_id": -1, "stream": True})

    assert status == 400
    assert "generate_stream" in answer["error"]


@pytest.mark.sweep
def test_a_huge_max_tokens_ends_where_the_engine_does(server: Deploy) -> None:
    long = {"input_ids": [300] * (ENDLESS - 200), "max_tokens": 2**31 - 1, "end_id": -1}
    _, answer = server.post({**long, "return_num_output_tokens": True})

    assert 200 < answer["num_output_tokens"] <= 392


def test_grpc_clients_hear_the_same_line(server: Deploy) -> None:
    client = server.client()
    with pytest.raises(ServerError, match="max_tokens is 0; it must be at least 1"):
        list(client.generate({"text_input": PROMPT, "max_tokens": 0, "stream": True}))
    assert list(client.generate({"text_input": PROMPT, "max_tokens": 2, "stream": True}))
    client.close()


@pytest.mark.parametrize(
    ("name", "array", "datatype", "said"),
    [
        ("prompt", np.array([[b"a"]], dtype=object), "BYTES", "unexpected inference input 'prompt'"),
        ("max_tokens", np.array([[1.5]], dtype=np.float32), "FP32", "data-type is 'FP32'"),
        (
            "max_tokens",
            np.array([[1, 2]], dtype=np.int32),
            "INT32",
            "unexpected shape for input 'max_tokens'",
        ),
    ],
)
def test_tensors_that_the_model_has_not_are_refused_over_grpc(
    server: Deploy, name: str, array: npt.NDArray[Any], datatype: str, said: str
) -> None:
    inputs = [
        _input("text_input", np.array([[PROMPT.encode()]], dtype=object), "BYTES"),
        _input(name, array, datatype),
    ]
    heard: queue.Queue[Any] = queue.Queue()
    client = grpc.InferenceServerClient(server.grpc_url)
    client.start_stream(lambda result, error: heard.put(error))
    client.async_stream_infer(server.model, inputs)

    error = heard.get(timeout=DEADLINE_S)
    client.stop_stream()
    client.close()

    assert said in error.message()


def test_the_good_are_served_beside_the_bad(server: Deploy) -> None:
    alone = server.generate(PROMPT, max_tokens=30)
    bad = [body for body, _ in REFUSED.values() if len(str(body)) < 100_000]

    with ThreadPoolExecutor(12) as pool:
        refused = [pool.submit(server.post, body) for body in bad * 2]
        served = [pool.submit(server.generate, PROMPT, max_tokens=30) for _ in range(6)]
        assert {answer.result()[0] for answer in refused} == {400}
        assert {answer.result() for answer in served} == {alone}


def _input(name: str, array: npt.NDArray[Any], datatype: str) -> grpc.InferInput:
    tensor = grpc.InferInput(name, array.shape, datatype)
    tensor.set_data_from_numpy(array)
    return tensor
