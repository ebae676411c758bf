"""Triton's gRPC: answers in pieces, and a stream that breaks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as services

from trtspec.base.errors import ServerError
from trtspec.client import grpc as endpoint
from trtspec.client.client import Client

WIRE = {
    "text_output": ("BYTES", np.object_),
    "finish_reason": ("BYTES", np.object_),
    "output_log_probs": ("FP32", np.float32),
}
END = {"text_output": [b""], "finish_reason": [b"stop"]}


class Model(services.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers each request with the same responses, and breaks the stream off where one is an exception."""

    def __init__(self, *responses: dict[str, Any] | Exception) -> None:
        self._responses = responses

    def ModelReady(self, request: Any, context: Any) -> Any:
        return pb.ModelReadyResponse(ready=True)

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        return pb.ModelMetadataResponse(inputs=[{"name": "text_input"}], outputs=[{"name": "finish_reason"}])

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:
        next(requests)
        for response in self._responses:
            if isinstance(response, Exception):
                context.abort(grpc.StatusCode.UNAVAILABLE, str(response))
                return
            made = pb.ModelInferResponse()
            for name, values in response.items():
                datatype, dtype = WIRE.get(name, ("INT32", np.int32))
                array = np.array([values], dtype)
                made.outputs.add(name=name, datatype=datatype, shape=[1, len(values)])
                content = array.tobytes()
                if datatype == "BYTES":
                    content = len(values[0]).to_bytes(4, "little") + values[0]
                made.raw_output_contents.append(content)
            yield pb.ModelStreamInferResponse(infer_response=made)


@contextmanager
def served(model: Model) -> Iterator[Client]:
    server = grpc.server(ThreadPoolExecutor(2))
    services.add_GRPCInferenceServiceServicer_to_server(model, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Client(f"127.0.0.1:{port}")
    server.stop(None)


def test_outputs_with_a_value_for_each_token_are_those_of_all_pieces() -> None:
    pieces = ([5, 6], [-0.5, -0.25]), ([7], [-1.0])
    responses: list[dict[str, Any]] = [
        {"text_output": [b"a"], "output_ids": ids, "output_log_probs": probs} for ids, probs in pieces
    ]
    with served(Model(*responses, {**END, "num_output_tokens": [3]})) as client:
        made = client.generate("hello")
    assert made.tensors["output_ids"] == [5, 6, 7]
    assert made.tensors["output_log_probs"] == [-0.5, -0.25, -1.0]
    assert (made.text, made.num_output_tokens) == ("aa", 3)


def test_a_stream_that_breaks_is_a_server_error_in_one_line() -> None:
    for more, said in ([RuntimeError("the server\ngoes")], "the server"), ([], "ended before the answer"):
        with (
            served(Model({"text_output": [b"a"]}, *more)) as client,
            pytest.raises(ServerError, match=rf"{said}$"),
        ):
            client.generate("hello")


@pytest.mark.parametrize(("texts", "first"), [([b"", b""], None), ([b"", b"a", b"b"], 2)])
def test_the_first_text_is_the_first_that_is_not_empty(
    texts: list[bytes], first: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each response takes a second."""
    clock = itertools.count()
    monkeypatch.setattr(endpoint, "perf_counter", lambda: next(clock))
    with served(Model(*({**END, "text_output": [text]} for text in texts))) as client:
        made = client.generate("hello")
    assert made.text.encode() == b"".join(texts)
    assert (made.first_text_s, made.seconds) == (first, len(texts))
