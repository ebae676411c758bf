"""The sending thread: order, coalescing, streams that rest, faults, clients that leave."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from tests.fakes.hearer import DONE, SECONDS, TROUBLE, FakeClient
from trtspec.serving.executor import LogProb
from trtspec.serving.triton.agreement import ASKING_S
from trtspec.serving.triton.outbox import Sender
from trtspec.serving.triton.responses import Code, Failure, TextChunk


def test_chunks_arrive_in_order(sender: Sender) -> None:
    client = FakeClient()
    outbox = sender.open(client, lambda: None)

    for text in "abc":
        outbox.put(TextChunk(text))
    outbox.put(TextChunk("d", DONE))

    assert client.is_served.wait(SECONDS)
    assert "".join(chunk.text for chunk in client.heard) == "abcd"
    assert [chunk.is_last for chunk in client.heard[:-1]] == [False] * (len(client.heard) - 1)
    assert client.heard[-1].completion is DONE


def test_text_put_during_a_send_goes_out_as_one_chunk(sender: Sender) -> None:
    client = FakeClient()
    client.may_send.clear()
    outbox = sender.open(client, lambda: None)
    outbox.put(TextChunk("first"))
    assert client.is_sending.wait(SECONDS)

    for number, text in enumerate(("a", "b", "c")):
        outbox.put(TextChunk(text, log_probs=[LogProb(-1.0)] * number))
    outbox.put(TextChunk("d", DONE, log_probs=[LogProb(-2.0)]))
    client.may_send.set()

    assert client.is_served.wait(SECONDS)
    assert client.heard == [
        TextChunk("first"),
        TextChunk("abcd", DONE, log_probs=[LogProb(value) for value in (-1.0, -1.0, -1.0, -2.0)]),
    ]


def test_sequences_are_kept_apart_and_the_last_chunk_is_sent_last(sender: Sender) -> None:
    client = FakeClient()
    client.may_send.clear()
    outbox = sender.open(client, lambda: None)
    outbox.put(TextChunk("first", sequence_index=1))
    assert client.is_sending.wait(SECONDS)

    outbox.put(TextChunk("a", sequence_index=1))
    outbox.put(TextChunk("b"))
    outbox.put(TextChunk("c", DONE, others_left=1))
    outbox.put(TextChunk("d", DONE, sequence_index=1))
    client.may_send.set()

    assert client.is_served.wait(SECONDS)
    assert client.heard[1:] == [
        TextChunk("bc", DONE, others_left=1),
        TextChunk("ad", DONE, sequence_index=1),
    ]
    assert [chunk.is_last for chunk in client.heard] == [False, False, True]


def test_nothing_follows_the_last_chunk(sender: Sender) -> None:
    """Who is cancelled behind its last token has its answer, and no failure in its place."""
    client = FakeClient()
    client.may_send.clear()
    outbox = sender.open(client, lambda: None)
    outbox.put(TextChunk("first"))
    assert client.is_sending.wait(SECONDS)

    assert outbox.put(TextChunk("a", DONE))
    assert not outbox.put(TextChunk(failure=TROUBLE))
    client.may_send.set()

    assert client.is_served.wait(SECONDS)
    assert client.heard == [TextChunk("first"), TextChunk("a", DONE)]


def test_a_refused_send_ends_that_request_alone(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    bad, good, gone = FakeClient(), FakeClient(), threading.Event()
    bad.fails = True
    broken = sender.open(bad, gone.set)

    with caplog.at_level(logging.CRITICAL):
        broken.put(TextChunk("a"))
        assert gone.wait(SECONDS)
        broken.put(TextChunk("b", DONE))
        sender.open(good, lambda: None).put(TextChunk("c", DONE))
        assert good.is_served.wait(SECONDS)

    assert bad.heard == []


def test_whose_response_could_not_be_sent_is_told_so(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    """Triton would have it wait for ever: no response was the last."""

    class Full(FakeClient):
        def send(self, chunk: TextChunk) -> None:
            if chunk.text:
                raise RuntimeError("no shared memory is left")
            super().send(chunk)

    client, gone = Full(), threading.Event()
    with caplog.at_level(logging.CRITICAL):
        sender.open(client, gone.set).put(TextChunk("a"))
        assert client.is_served.wait(SECONDS)

    assert gone.is_set()
    told = Failure("a response could not be sent", Code.INTERNAL)
    assert [chunk.failure for chunk in client.heard] == [told]


def test_a_client_that_leaves_is_noticed_once(sender: Sender, ticks: threading.Semaphore) -> None:
    client = FakeClient()
    leaves: list[int] = []
    sender.open(client, lambda: leaves.append(1))
    client.left = True

    # Two ticks to come after the one that may be under way.
    for _ in range(3):
        assert ticks.acquire(timeout=SECONDS)

    assert leaves == [1]


def test_the_outbox_asks_triton_about_each_client_in_turn(sender: Sender, ticks: threading.Semaphore) -> None:
    asked: list[FakeClient] = []
    all_are_here = threading.Event()

    class Slow(FakeClient):
        def has_left(self, ask: bool) -> bool:
            if ask and all_are_here.is_set():
                asked.append(self)
                time.sleep(2 * ASKING_S)
            return self.left

    clients = [Slow() for _ in range(3)]
    for client in clients:
        sender.open(client, lambda: None)
    all_are_here.set()
    while len(asked) < 9:
        assert ticks.acquire(timeout=SECONDS)

    assert asked[3:9] == asked[:3] * 2
    assert set(asked[:3]) == set(clients)


def test_who_is_known_to_have_left_is_noticed_without_being_asked(sender: Sender) -> None:
    noticed = threading.Event()

    class Slow(FakeClient):
        def has_left(self, ask: bool) -> bool:
            if ask:
                time.sleep(2 * ASKING_S)
            return self.left and not ask

    others = [Slow() for _ in range(20)]
    for client in others:
        sender.open(client, lambda: None)
    leaver = Slow()
    leaver.left = True
    sender.open(leaver, noticed.set)

    assert noticed.wait(SECONDS)


def test_a_client_that_cannot_be_asked_costs_the_others_nothing(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeClient):
        def has_left(self, ask: bool) -> bool:
            raise RuntimeError("no such request")

    leaver, leaves = FakeClient(), threading.Event()
    with caplog.at_level(logging.CRITICAL):
        sender.open(Broken(), lambda: None)
        sender.open(leaver, leaves.set)
        leaver.left = True
        assert leaves.wait(SECONDS)


def test_a_metric_that_fails_costs_the_clients_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ticked = threading.Semaphore(0)

    def tick() -> None:
        ticked.release()
        raise RuntimeError("no such metric")

    sender, client = Sender(tick, tick_s=0.01), FakeClient()
    with caplog.at_level(logging.CRITICAL):
        for _ in range(3):
            assert ticked.acquire(timeout=SECONDS)
        sender.open(client, lambda: None).put(TextChunk("a", DONE))
        assert client.is_served.wait(SECONDS)
        sender.close()


def test_close_sends_what_waits() -> None:
    client = FakeClient()
    sender = Sender(lambda: None, tick_s=60)
    sender.open(client, lambda: None).put(TextChunk("a", DONE))

    sender.close()

    assert client.heard == [TextChunk("a", DONE)]
