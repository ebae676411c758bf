"""Streams that rest behind a response, so that many of them leave the processor to the engines."""

from __future__ import annotations

import pytest

from tests.fakes.clock import HandClock
from tests.fakes.hearer import DONE, SECONDS, TROUBLE, FakeClient
from trtspec.serving.triton import outbox as module
from trtspec.serving.triton.outbox import Outbox, Sender
from trtspec.serving.triton.responses import TextChunk


class Streams:
    """Streams that have had their first text and rest behind it, in this order, the first alone not."""

    def __init__(self, sender: Sender, count: int) -> None:
        self._sender = sender
        self.clients: list[FakeClient] = []
        self.outboxes: list[Outbox] = []
        for _ in range(count):
            self.begin("first ")

    def begin(self, text: str) -> None:
        """Waits until a new stream has had its first text."""
        self.clients.append(FakeClient())
        self.outboxes.append(self._sender.open(self.clients[-1], lambda: None))
        self.outboxes[-1].put(TextChunk(text))
        assert self.clients[-1].responses.acquire(timeout=SECONDS)

    def pass_by(self) -> None:
        """Waits until the thread has looked at the clock, as it does behind each response."""
        for _ in range(2):
            self.begin("another's first")

    def said(self, number: int) -> list[str]:
        return [chunk.text for chunk in self.clients[number].heard]


@pytest.fixture
def long_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REST_S", 3600.0)
    monkeypatch.setattr(module, "LONGEST_REST_S", 3600.0)


@pytest.mark.usefixtures("long_rests")
def test_one_stream_alone_rests_for_less_than_a_step(sender: Sender) -> None:
    streams = Streams(sender, 1)

    for text in "abc":
        streams.outboxes[0].put(TextChunk(text))
        assert streams.clients[0].responses.acquire(timeout=SECONDS)

    assert streams.said(0) == ["first ", "a", "b", "c"]


@pytest.mark.usefixtures("long_rests")
@pytest.mark.parametrize(
    ("end", "texts"), [(TextChunk("c", DONE), ["abc"]), (TextChunk(failure=TROUBLE), ["ab", ""])]
)
def test_each_of_many_streams_rests_behind_a_response_but_begins_and_ends_at_once(
    sender: Sender, end: TextChunk, texts: list[str]
) -> None:
    """A failure has no text of its own, so what was said until then goes before it."""
    streams = Streams(sender, 2)

    streams.outboxes[1].put(TextChunk("a"))
    streams.outboxes[1].put(TextChunk("b"))
    # The thread sends in order: once it has sent this, it has left the two before it.
    streams.begin("another's first")
    assert streams.said(1) == ["first "]

    streams.outboxes[1].put(end)
    assert streams.clients[1].is_served.wait(SECONDS)
    assert streams.said(1) == ["first ", *texts]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """The clock of rests, of a hundred seconds each."""
    clock = HandClock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "REST_S", 100.0)
    monkeypatch.setattr(module, "LONGEST_REST_S", 100.0)
    return clock


def test_one_stream_alone_gets_what_came_within_half_a_millisecond_in_one_response(
    clock: HandClock, sender: Sender
) -> None:
    streams = Streams(sender, 1)
    for text in "abc":
        streams.outboxes[0].put(TextChunk(text))
    streams.pass_by()
    assert streams.said(0) == ["first "]
    clock.now += module.SHORTEST_REST_S
    assert streams.clients[0].responses.acquire(timeout=SECONDS)
    assert streams.said(0) == ["first ", "abc"]


def test_sequences_that_have_ended_leave_the_rests_of_the_others_as_long(
    clock: HandClock, sender: Sender
) -> None:
    streams, ended = Streams(sender, 2), 16
    client, outbox = streams.clients[1], streams.outboxes[1]
    for sequence in range(ended):
        clock.now += 1.0
        outbox.put(TextChunk("x", DONE, sequence_index=sequence, others_left=ended - sequence))
        assert client.responses.acquire(timeout=SECONDS)
    outbox.put(TextChunk("y", sequence_index=ended, others_left=1))
    before = len(client.heard)

    # The rests behind all ends but the last are over.
    clock.now = ended + 99.0
    streams.pass_by()
    assert len(client.heard) == before

    clock.now = ended + 100.0
    streams.pass_by()
    assert client.responses.acquire(timeout=SECONDS)
    assert client.heard[before].text == "y"


def test_text_that_comes_during_a_rest_is_sent_behind_it_and_later_text_at_once(
    clock: HandClock, sender: Sender
) -> None:
    streams = Streams(sender, 2)

    streams.outboxes[1].put(TextChunk("a"))
    streams.outboxes[1].put(TextChunk("b"))
    clock.now += 99.0
    streams.pass_by()
    assert streams.said(1) == ["first "]
    clock.now += 1.0
    streams.pass_by()
    assert streams.clients[1].responses.acquire(timeout=SECONDS)
    assert streams.said(1) == ["first ", "ab"]

    clock.now += 100.0
    streams.pass_by()
    streams.outboxes[1].put(TextChunk("c"))
    assert streams.clients[1].responses.acquire(timeout=SECONDS)
    assert streams.said(1) == ["first ", "ab", "c"]


def test_the_last_of_many_streams_rests_as_one_alone(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_REST_S", 3600.0)
    streams = Streams(sender, 2)
    streams.outboxes[0].put(TextChunk("", DONE))
    assert streams.clients[0].is_served.wait(SECONDS)
    monkeypatch.setattr(module, "REST_S", 3600.0)

    for text in "abc":
        streams.outboxes[1].put(TextChunk(text))
        assert streams.clients[1].responses.acquire(timeout=SECONDS)

    assert streams.said(1) == ["first ", "a", "b", "c"]


@pytest.mark.usefixtures("long_rests")
def test_close_sends_what_waits_during_a_rest() -> None:
    sender = Sender(lambda: None, tick_s=60)
    streams = Streams(sender, 2)
    streams.outboxes[1].put(TextChunk("a"))

    sender.close()

    assert streams.said(1) == ["first ", "a"]
