"""A bad request is one clear line for its client, and nothing to the others."""

from __future__ import annotations

import math
import queue
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as grpc

from trtspec.errors import ServerError

PROMPT = "import os\n"

# What is sent, and what the line must name.
REFUSED = {
    "no text": ({"max_tokens": 4}, ["text_input is missing"]),
    "empty text": ({"text_input": ""}, ["text_input is empty"]),
    "two texts": ({"text_input": ["a", "b"]}, ["batch"]),
    "max_tokens 0": ({"text_input": PROMPT, "max_tokens": 0}, ["max_tokens is 0", "at least 1"]),
    "max_tokens below 0": ({"text_input": PROMPT, "max_tokens": -5}, ["max_tokens is -5"]),
    "prompt over the limit": ({"text_input": "x = 1\n" * 2000}, ["text_input is", "tokens"]),
    "megabytes of prompt": ({"text_input": "x" * 20_000_000}, ["text_input is 20000000 characters"]),
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
    "bad words": ({"text_input": PROMPT, "bad_words": ["os"]}, ['bad_words is "os"']),
    "log probs": ({"text_input": PROMPT, "return_log_probs": True}, ["return_log_probs is true"]),
    "guided decoding": ({"text_input": PROMPT, "guided_decoding_guide": "{}"}, ["guided_decoding_guide is"]),
    "too many stop words": ({"text_input": PROMPT, "stop_words": ["a"] * 65}, ["stop_words is 65 strings"]),
}


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
@pytest.mark.parametrize(("body", "names"), REFUSED.values(), ids=REFUSED)
def test_a_bad_value_is_a_400_with_one_line(server, body, names, verb):
    status, answer = server.post({**body, "stream": verb == "generate_stream"}, verb)
    (event,) = answer if verb == "generate_stream" else [answer]

    assert status == 400
    assert event.keys() == {"error"}
    for name in names:
        assert name in event["error"]
    assert "\n" not in event["error"]
    assert "Traceback" not in event["error"]
    assert len(event["error"]) < 200


def test_invalid_utf8_is_named_with_its_place(server):
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
    ],
)
def test_what_is_no_json_of_the_right_types_is_tritons_to_refuse(server, body):
    status, answer = server.post(body)

    assert status >= 400
    assert "\n" not in answer["error"]
    assert server.generate(PROMPT, max_tokens=2)


def test_a_huge_max_tokens_ends_where_the_engine_does(server):
    _, answer = server.post(
        {"text_input": PROMPT, "max_tokens": 2**31 - 1, "end_id": -1, "return_num_output_tokens": True}
    )

    assert 500 < answer["num_output_tokens"] < 1024


def test_grpc_clients_hear_the_same_line(server):
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
def test_tensors_that_the_model_has_not_are_refused_over_grpc(server, name, array, datatype, said):
    inputs = [
        _input("text_input", np.array([[PROMPT.encode()]], dtype=object), "BYTES"),
        _input(name, array, datatype),
    ]
    heard: queue.Queue = queue.Queue()
    client = grpc.InferenceServerClient(server.grpc_url)
    client.start_stream(lambda result, error: heard.put(error))
    client.async_stream_infer(server.model, inputs)

    error = heard.get(timeout=30)
    client.stop_stream()
    client.close()

    assert said in error.message()


def test_the_good_are_served_beside_the_bad(server):
    alone = server.generate(PROMPT, max_tokens=30)
    bad = [body for body, _ in REFUSED.values() if len(str(body)) < 100_000]

    with ThreadPoolExecutor(12) as pool:
        refused = [pool.submit(server.post, body) for body in bad * 2]
        served = [pool.submit(server.generate, PROMPT, max_tokens=30) for _ in range(6)]
        assert {answer.result()[0] for answer in refused} == {400}
        assert {answer.result() for answer in served} == {alone}


def _input(name: str, array: np.ndarray, datatype: str) -> grpc.InferInput:
    tensor = grpc.InferInput(name, array.shape, datatype)
    tensor.set_data_from_numpy(array)
    return tensor
