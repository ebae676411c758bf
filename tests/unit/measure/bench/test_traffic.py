"""Loads, against an endpoint whose every answer takes a known time on a clock that does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from trtspec.client.endpoint import Api, AskError, EndpointRequest, TimedAnswer
from trtspec.measure.bench import traffic
from trtspec.measure.bench.sample import Block, RequestSample
from trtspec.measure.bench.traffic import Manner, closed_loop, open_loop
from trtspec.measure.workloads.workload import Prompt


class Clock:
    """A loop whose time jumps to the next thing to do, so that seconds cost nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = 0.0
        self._select = loop._selector.select  # type: ignore[attr-defined]
        loop._selector.select = self._jump  # type: ignore[attr-defined]
        loop.time = lambda: self.now  # type: ignore[method-assign]

    def _jump(self, timeout: float | None) -> Any:
        self.now += timeout or 0
        return self._select(0)


class Scripted:
    """Takes `seconds` of a prompt's number for its answer, at most `places` at once; counts who is there."""

    url, model, plain_per_request = "", "", True
    api: Api = "triton"

    def __init__(self, clock: Clock, seconds: Callable[[str], float], places: int = 1000) -> None:
        self._clock, self._seconds, self._places = clock, seconds, asyncio.Semaphore(places)
        self.running, self.most, self.asked = 0, 0, list[EndpointRequest]()

    async def ask(self, question: EndpointRequest) -> TimedAnswer:
        answer = TimedAnswer(sent=self._clock.now)
        self.asked.append(question)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            async with self._places:
                said = question.messages[-1].text
                if said == "fail":
                    raise AskError("refused", "503: full", answer.sent)
                for word in ("a", "b"):
                    await asyncio.sleep(self._seconds(said) / 2)
                    answer.text += word
                    answer.times.append(self._clock.now)
        finally:
            self.running -= 1
        answer.ended, answer.num_output_tokens, answer.finish_reason = self._clock.now, 10, "length"
        return answer

    async def close(self) -> None: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Runs a coroutine that is made of a clock."""
    loop = asyncio.new_event_loop()
    clock = Clock(loop)
    monkeypatch.setattr(traffic, "perf_counter", lambda: clock.now)

    def go(make: Callable[[Clock], Awaitable[Block]]) -> Block:
        async def work() -> Block:
            return await make(clock)

        return loop.run_until_complete(work())

    yield go
    loop.close()


def manner(heard: list[tuple[RequestSample, str]] | None = None, **values: Any) -> Manner:
    told = heard if heard is not None else []
    shared: dict[str, Any] = {
        "max_tokens": 32,
        "temperature": 0.0,
        "seed": 5,
        "ignore_eos": False,
        "num_draft_tokens": None,
        "tenant": None,
    }
    return Manner(**{**shared, **values}, heard=lambda sample, question, text: told.append((sample, text)))


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt(str(number), (text,), "c") for number, text in enumerate(texts)]


def ends(block: Block) -> Sequence[float]:
    return pytest.approx([sample.ended for sample in block.samples])  # type: ignore[return-value]


def test_streams_ask_one_after_the_other(run: Callable[..., Block]) -> None:
    """Two streams, of which one is held up by a long answer; until 4 s both are at work."""
    servers: list[Scripted] = []

    async def work(clock: Clock) -> Block:
        servers.append(Scripted(clock, float))
        return await closed_loop(servers[0], prompts("4", "1", "1", "2", "1"), 2, manner())

    block = run(work)
    assert servers[0].most == 2
    assert {sample.prompt: sample.ended for sample in block.samples} == {
        "0": 4,
        "1": 1,
        "2": 2,
        "3": 4,
        "4": 5,
    }
    assert (block.seconds, block.full_until) == (5, 4)
    # 40 tokens by 4 s; the fifth answer came after it.
    assert block.tokens_per_second == 10
    assert all(sample.intended == sample.sent for sample in block.samples)
    assert [question.max_tokens for question in servers[0].asked] == [32] * 5


def test_a_rate_waits_for_nobody_and_hides_nothing(run: Callable[..., Block]) -> None:
    """One place, three seconds an answer, a request every second: each waits two seconds longer."""

    async def work(clock: Clock) -> Block:
        server = Scripted(clock, lambda _: 3.0, places=1)
        return await open_loop(server, prompts(*"abcd"), [0, 1, 2, 3], manner())

    block = run(work)
    assert [sample.intended for sample in block.samples] == [0, 1, 2, 3]
    assert [sample.end_to_end for sample in block.samples] == [3, 5, 7, 9]
    assert [sample.time_to_first_token for sample in block.samples] == [1.5, 3.5, 5.5, 7.5]
    assert block.mean_end_to_end == 6


def test_a_rate_whose_requests_all_came_before_an_answer_counts_the_whole_block(
    run: Callable[..., Block],
) -> None:
    """Two answers of ten tokens and a second each, the later one begun a microsecond after the other."""

    async def work(clock: Clock) -> Block:
        return await open_loop(Scripted(clock, lambda _: 1.0), prompts(*"ab"), [0, 1e-6], manner())

    assert run(work).tokens_per_second == pytest.approx(20, rel=1e-4)


def test_latency_counts_from_the_intended_time_where_the_program_is_late(run: Callable[..., Block]) -> None:
    """Something blocks this process for two seconds before the second request."""

    async def work(clock: Clock) -> Block:
        class Blocking(Scripted):
            async def ask(self, question: EndpointRequest) -> TimedAnswer:
                answer = await super().ask(question)
                if question.messages[-1].text == "1":
                    clock.now += 2
                return answer

        return await open_loop(Blocking(clock, float), prompts("1", "0.5"), [0, 1.5], manner())

    late = run(work).samples[1]
    assert (late.intended, late.sent, late.ended) == (1.5, 3.0, 3.5)
    assert late.end_to_end == 2.0


def test_turns_have_the_answers_so_far_and_stay_with_their_stream(run: Callable[..., Block]) -> None:
    heard: list[tuple[RequestSample, str]] = []
    servers: list[Scripted] = []

    async def work(clock: Clock) -> Block:
        servers.append(Scripted(clock, float))
        talk = [Prompt("talk", ("1", "2", "3"), "chat", max_tokens=7)]
        return await closed_loop(servers[0], talk, 1, manner(heard, temperature=0.5, num_draft_tokens=0))

    block = run(work)
    assert [(sample.turn, sample.intended, sample.ended) for sample in block.samples] == [
        (0, 0, 1),
        (1, 1, 3),
        (2, 3, 6),
    ]
    last = servers[0].asked[-1]
    assert [(message.role, message.text) for message in last.messages] == [
        ("user", "1"),
        ("assistant", "ab"),
        ("user", "2"),
        ("assistant", "ab"),
        ("user", "3"),
    ]
    assert (last.max_tokens, last.num_draft_tokens, last.seed) == (7, 0, 5)
    assert [text for _, text in heard] == ["ab"] * 3


def test_a_failed_request_is_counted_and_ends_its_conversation(run: Callable[..., Block]) -> None:
    heard: list[tuple[RequestSample, str]] = []

    async def work(clock: Clock) -> Block:
        talks = [Prompt("a", ("1", "fail", "1")), Prompt("b", ("1",))]
        return await closed_loop(Scripted(clock, float), talks, 1, manner(heard))

    block = run(work)
    assert [(sample.prompt, sample.error, sample.problem) for sample in block.samples] == [
        ("a", None, ""),
        ("a", "refused", "503: full"),
        ("b", None, ""),
    ]
    assert len(heard) == 3


def test_cancelled_it_cancels_what_it_has_asked(run: Callable[..., Block]) -> None:
    servers: list[Scripted] = []

    async def work(clock: Clock) -> None:
        servers.append(Scripted(clock, lambda _: 100.0))
        task = asyncio.ensure_future(closed_loop(servers[0], prompts(*"abc"), 3, manner()))
        await asyncio.sleep(1)
        assert servers[0].running == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(work)
    assert servers[0].running == 0
