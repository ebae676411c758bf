"""The gRPC client when nothing answers at the address, or no text comes."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trtspec.base.errors import ServerError
from trtspec.client import client
from trtspec.client.client import Client
from trtspec.client.grpc import GrpcClient

if TYPE_CHECKING:
    from _collections_abc import dict_items


class AfterTheStreamBroke(dict[str, Any]):
    """Values that are read when the thread that listens to the stream has ended."""

    def items(self) -> dict_items[str, Any]:
        before = self.pop("threads")
        for thread in set(threading.enumerate()) - before:
            if "_process_response" in thread.name:
                thread.join(60)
                assert not thread.is_alive()
        return super().items()


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_stream_that_cannot_begin_is_a_server_error(closed_port: int, is_late: bool) -> None:
    client = GrpcClient(f"127.0.0.1:{closed_port}", "speculative_llm")
    values: dict[str, Any] = {"text_input": "hello"}
    if is_late:
        values = AfterTheStreamBroke(values, threads=set(threading.enumerate()))
    with pytest.raises(ServerError, match="failed to connect"):
        next(client.generate(values))
    client.close()


@pytest.mark.parametrize(("texts", "first"), [(["", ""], None), (["", "a", "b"], 2)])
def test_the_first_text_is_the_first_that_is_not_empty(
    texts: list[str], first: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each response takes a second."""

    class Answering(GrpcClient):
        def wait(self, seconds: float) -> None:
            pass

        def inputs(self) -> set[str]:
            return set()

        def generate(self, values: Any) -> Generator[dict[str, Any], None, None]:
            for text in texts:
                yield {"text_output": text}

    clock = itertools.count()
    monkeypatch.setattr(client, "GrpcClient", Answering)
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    made = Client("127.0.0.1:1").generate("hello")
    assert made.text == "".join(texts)
    assert made.first_text_s == first
