"""Triton's gRPC: answers in pieces, and a stream that breaks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.fakes.triton_grpc import TritonModel, served
from trtspec.base.errors import ServerError
from trtspec.client import grpc as endpoint
from trtspec.client.client import Client

END = {"text_output": [b""], "finish_reason": [b"stop"]}


def test_outputs_with_a_value_for_each_token_are_those_of_all_pieces() -> None:
    pieces = ([5, 6], [-0.5, -0.25]), ([7], [-1.0])
    responses: list[dict[str, Any]] = [
        {"text_output": [b"a"], "output_ids": ids, "output_log_probs": probs} for ids, probs in pieces
    ]
    with served(TritonModel(*responses, {**END, "num_output_tokens": [3]})) as url:
        made = Client(url).generate("hello")
    assert made.tensors["output_ids"] == [5, 6, 7]
    assert made.tensors["output_log_probs"] == [-0.5, -0.25, -1.0]
    assert (made.text, made.num_output_tokens) == ("aa", 3)


def test_a_stream_that_breaks_is_a_server_error_in_one_line() -> None:
    for more, said in ([RuntimeError("the server\ngoes")], "the server"), ([], "ended before the answer"):
        with (
            served(TritonModel({"text_output": [b"a"]}, *more)) as url,
            pytest.raises(ServerError, match=rf"{said}$"),
        ):
            Client(url).generate("hello")


@pytest.mark.parametrize(("texts", "first"), [([b"", b""], None), ([b"", b"a", b"b"], 2)])
def test_the_first_text_is_the_first_that_is_not_empty(
    texts: list[bytes], first: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each response takes a second."""
    clock = itertools.count()
    monkeypatch.setattr(endpoint, "perf_counter", lambda: next(clock))
    with served(TritonModel(*({**END, "text_output": [text]} for text in texts))) as url:
        made = Client(url).generate("hello")
    assert made.text.encode() == b"".join(texts)
    assert (made.first_text_s, made.seconds) == (first, len(texts))
