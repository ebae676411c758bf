"""A service over scripted engines, and clients that listen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.scripted_executor import ScriptedExecutor, agreeing, babble
from trtspec.serving.admission import ServingBounds
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.executor import Limits, Request
from trtspec.serving.stats import Stats
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton.engines import EnginePair
from trtspec.serving.triton.outbox import Sender
from trtspec.serving.triton.requests import ResponseOptions
from trtspec.serving.triton.responses import Failure, TextChunk
from trtspec.serving.triton.service import CoordinatorService
from trtspec.serving.triton.watchdog import Watchdog

LIMITS = Limits(max_batch_size=8, max_input_len=256, max_seq_len=600, max_draft_len=4, vocab_size=300)
ENDLESS = CompletionRequest("hello", max_tokens=400, end_id=NO_END)
SECONDS = 120


class ListeningClient:
    def __init__(self) -> None:
        self.heard: list[TextChunk] = []
        self.is_streaming, self.is_over = threading.Event(), threading.Event()
        self.left = False

    def send(self, chunk: TextChunk) -> None:
        self.heard.append(chunk)
        self.is_streaming.set()
        if chunk.is_last:
            self.is_over.set()

    def has_left(self, ask: bool) -> bool:
        return self.left

    def text(self) -> str:
        assert self.is_over.wait(SECONDS)
        return "".join(chunk.text for chunk in self.heard)

    def failure(self) -> Failure | None:
        assert self.is_over.wait(SECONDS)
        return self.heard[-1].failure


class Dog(Watchdog):
    """Hears what a watchdog hears, without a process that watches."""

    def __init__(self) -> None:
        self.has_beaten, self.has_given_up = threading.Event(), threading.Event()
        self.reason = ""

    def beat(self) -> None:
        self.has_beaten.set()

    def give_up(self, reason: str) -> None:
        self.reason = reason
        self.has_given_up.set()


class Serve:
    """Starts services over scripted engines, `delay` seconds a step."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self.watchdog = tokenizer, Dog()
        self.started: list[CoordinatorService] = []

    def __call__(
        self,
        delay: float = 0.0,
        tick: Callable[[Stats], None] = lambda stats: None,
        fails: Callable[[Request], str | None] = lambda request: None,
        bounds: ServingBounds | None = None,
    ) -> tuple[CoordinatorService, ScriptedExecutor]:
        language = babble(LIMITS.vocab_size)
        target = ScriptedExecutor(LIMITS, language, delay, fails)
        draft = ScriptedExecutor(LIMITS, agreeing(language, LIMITS.vocab_size, 0.7), delay)
        pair = EnginePair(target, draft, self._tokenizer, bounds=bounds)
        service = CoordinatorService(lambda: pair, tick, self.watchdog, 0.01)
        self.started.append(service)
        return service, target


@pytest.fixture
def serve(tokenizer: Tokenizer) -> Iterator[Serve]:
    """Closes what it has started."""
    serve = Serve(tokenizer)
    yield serve
    for service in serve.started:
        service.close()


def ask(
    service: CoordinatorService, request: CompletionRequest, wanted: ResponseOptions | None = None
) -> ListeningClient:
    client = ListeningClient()
    service.submit(request, wanted or ResponseOptions(), client)
    return client


@pytest.fixture
def ticks() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
def sender(ticks: threading.Semaphore) -> Iterator[Sender]:
    sender = Sender(ticks.release, tick_s=0.01)
    yield sender
    sender.close()
