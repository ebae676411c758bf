"""The loop behind an engine's own model, with a scripted engine and clients that listen."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from tests.fakes.bls_model import QueueClient, as_received
from tests.fakes.scripted_executor import ScriptedExecutor, babble
from trtspec.serving.errors import EngineFailure, EngineLoadError
from trtspec.serving.executor import Limits, Request
from trtspec.serving.triton.agreement import ASKING_S
from trtspec.serving.triton.engine_requests import Arrays
from trtspec.serving.triton.engine_service import EngineService
from trtspec.serving.triton.watchdog import Watchdog

LIMITS = Limits(max_batch_size=8, max_input_len=255, max_seq_len=6000, max_draft_len=4, vocab_size=300)
LANGUAGE = babble(LIMITS.vocab_size)
SECONDS = 120
LONG = 5000
"""The tokens of a text that goes on while others act."""
Serve = Callable[..., EngineService]


def text(count: int) -> list[int]:
    tokens = [3, 1, 4]
    for _ in range(count):
        tokens.append(LANGUAGE(tokens))
    return tokens[3:]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts services over a scripted engine, `delay` seconds a step, and closes them."""
    started: list[EngineService] = []

    def start(
        delay: float = 0.0, fails: Callable[[Request], str | None] = lambda request: None
    ) -> EngineService:
        service = EngineService(
            lambda: ScriptedExecutor(LIMITS, LANGUAGE, delay, fails), excludes_input=True, check_s=0.01
        )
        started.append(service)
        return service

    yield start
    for service in started:
        service.close()


def submit(
    service: EngineService,
    request_id: str = "",
    max_tokens: int = 8,
    client: QueueClient | None = None,
    **values: npt.NDArray[Any],
) -> QueueClient:
    client = client or QueueClient()
    arrays = {
        "input_ids": np.array([[3, 1, 4]], np.int32),
        "input_lengths": np.array([[3]], np.int32),
        "request_output_len": np.array([[max_tokens]], np.int32),
        **values,
    }
    service.submit(as_received(arrays), request_id, client)
    return client


def heard(client: QueueClient) -> list[list[int]]:
    """The tokens of each response, up to the final one."""
    responses: list[list[int]] = []
    is_final = False
    while not is_final:
        arrays, is_final, error = client.heard.get(timeout=SECONDS)
        assert error is None
        responses.append(arrays["output_ids"].reshape(-1).tolist() if arrays else [])
    with pytest.raises(queue.Empty):
        client.heard.get_nowait()
    return responses


def failure(client: QueueClient) -> str | None:
    return client.heard.get(timeout=SECONDS)[2]


def test_one_answer_or_a_stream(serve: Serve) -> None:
    service = serve()

    assert heard(submit(service)) == [text(8)]
    assert heard(submit(service, streaming=np.array([[True]]))) == [[token] for token in text(8)]


def test_a_stop_ends_the_requests_with_its_id(serve: Serve) -> None:
    service = serve(delay=0.005)
    stopped = submit(service, "a", max_tokens=LONG, streaming=np.array([[True]]))
    other = submit(service, "b", max_tokens=40)
    stopped.heard.get(timeout=SECONDS)

    assert heard(submit(service, "a", stop=np.array([[True]]))) == [[]]

    assert len(heard(stopped)) < LONG
    assert heard(other) == [text(40)]


def test_a_stop_without_an_id_or_for_nobody_ends_nothing(serve: Serve) -> None:
    service = serve(delay=0.002)
    client = submit(service, max_tokens=30)

    for request_id in ("", "unknown"):
        assert heard(submit(service, request_id, stop=np.array([[True]]))) == [[]]

    assert heard(client) == [text(30)]


def test_a_client_that_leaves_takes_its_work_with_it(serve: Serve) -> None:
    service = serve(delay=0.005)
    client = submit(service, max_tokens=LONG, streaming=np.array([[True]]))
    client.heard.get(timeout=SECONDS)
    client.left = True

    assert len(heard(client)) < LONG


def test_slow_answers_of_triton_about_departed_clients_do_not_hold_up_text(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow it answers, nobody waits long for text, and who has left is found."""
    asked: list[QueueClient] = []

    def has_left(client: QueueClient) -> bool:
        asked.append(client)
        time.sleep(2 * ASKING_S)
        return client.left

    monkeypatch.setattr(QueueClient, "has_left", has_left)
    service = serve(delay=0.005)
    clients = [submit(service, max_tokens=LONG, streaming=np.array([[True]])) for _ in range(4)]
    for client in clients:
        client.heard.get(timeout=SECONDS)
    clients[-1].left = True

    assert len(heard(clients[-1])) < LONG
    assert any(set(asked[i : i + 4]) == set(clients) for i in range(len(asked) - 3))


def test_whose_response_cannot_be_sent_is_told_so_and_takes_its_work_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    several = threading.Event()

    class Full(QueueClient):
        def send(self, arrays: Arrays, is_final: bool) -> None:
            assert several.wait(SECONDS)
            raise RuntimeError("no shared memory is left")

    executor = ScriptedExecutor(LIMITS, LANGUAGE, 0.005)
    service = EngineService(lambda: executor, excludes_input=True, check_s=0.01)
    try:
        with caplog.at_level(logging.CRITICAL):
            client = submit(service, max_tokens=LONG, client=Full(), streaming=np.array([[True]]))
            deadline = time.monotonic() + SECONDS
            while service._sends._work_queue.qsize() < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            several.set()
            assert failure(client) == "a response could not be sent"
            while executor.in_flight and time.monotonic() < deadline:
                time.sleep(0.01)
        assert executor.cancelled
        assert client.heard.empty()
        assert heard(submit(service, max_tokens=30)) == [text(30)]
    finally:
        service.close()


def test_an_engine_that_is_shut_down_is_no_reason_to_end_the_server() -> None:
    """However long that takes: what looks around falls due meanwhile."""

    class Slow(ScriptedExecutor):
        def shutdown(self) -> None:
            time.sleep(0.1)
            super().shutdown()
            self.failure = "The engine is shut down"

    given_up: list[str] = []
    watchdog = cast(Watchdog, SimpleNamespace(beat=lambda: None, give_up=given_up.append))
    EngineService(lambda: Slow(LIMITS, LANGUAGE), True, 0.01, watchdog).close()

    assert given_up == []


@pytest.mark.parametrize("streaming", [False, True])
def test_a_stop_word_ends_the_text_behind_it(serve: Serve, streaming: bool) -> None:
    words = np.array([[text(5)[3:5], [2, -1]]], np.int32)
    client = submit(serve(), max_tokens=100, stop_words_list=words, streaming=np.array([[streaming]]))

    assert [token for tokens in heard(client) for token in tokens] == text(5)


def test_errors_of_the_request_and_of_the_engine_are_told(serve: Serve) -> None:
    service = serve()

    assert "beam_width is given" in (failure(submit(service, beam_width=np.array([[2]], np.int32))) or "")
    assert "exceeds maximum draft tokens length" in (
        failure(submit(service, draft_input_ids=np.array([[1] * 5], np.int32))) or ""
    )


def test_an_engine_that_cannot_run_is_found_when_it_is_loaded() -> None:
    with pytest.raises(EngineFailure, match="broken"):
        EngineService(lambda: ScriptedExecutor(LIMITS, LANGUAGE, 0.0, lambda request: "broken"), True, 1)


def test_an_engine_that_cannot_be_loaded_leaves_no_thread() -> None:
    def load() -> ScriptedExecutor:
        raise EngineLoadError("rank0.safetensors", "is cut short")

    with pytest.raises(EngineLoadError, match="is cut short"):
        EngineService(load, True, 1)


def test_closing_ends_what_runs(serve: Serve) -> None:
    service = EngineService(lambda: ScriptedExecutor(LIMITS, LANGUAGE, 0.005), True, 0.01)
    client = submit(service, max_tokens=LONG, streaming=np.array([[True]]))
    client.heard.get(timeout=SECONDS)

    service.close()

    assert len(heard(client)) < LONG
