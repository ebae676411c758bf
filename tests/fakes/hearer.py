"""A client of a streamed answer."""

from __future__ import annotations

import threading

from trtspec.serving.completion import Completion, EndReason
from trtspec.serving.stats import SpeculationCounts
from trtspec.serving.triton.responses import Code, Failure, TextChunk

DONE = Completion(EndReason.LENGTH, 1, 1, SpeculationCounts())
TROUBLE = Failure("why", Code.INTERNAL)
SECONDS = 120
"""How long a send may be held."""


class FakeClient:
    """Hears chunks; a send blocks until `may_send` is set."""

    def __init__(self) -> None:
        self.heard: list[TextChunk] = []
        self.is_sending, self.may_send, self.is_served = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self.responses = threading.Semaphore(0)
        self.may_send.set()
        self.left, self.fails = False, False

    def send(self, chunk: TextChunk) -> None:
        self.is_sending.set()
        assert self.may_send.wait(SECONDS)
        if self.fails:
            raise RuntimeError("Triton has had enough")
        self.heard.append(chunk)
        self.responses.release()
        if chunk.is_last:
            self.is_served.set()

    def has_left(self, ask: bool) -> bool:
        return self.left
