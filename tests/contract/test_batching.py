"""Many requests in flight: each is served as if alone, in the order in which they came; cancellation."""

from __future__ import annotations

import asyncio
import random
from functools import partial

from tests.contract.conftest import Answers, Ask, Continuation, Subject
from trtspec.serving.executor import FinishReason, Request, Response

PROMPT = [11, 22, 33, 44]


def test_in_flight_equals_one_by_one(subject: Subject, continuation: Continuation, answers: Answers) -> None:
    dice, requests = random.Random(3), []
    for index in range(24):
        prompt = [dice.randrange(96) for _ in range(dice.randrange(1, 60))]
        draft = continuation(prompt, 6)[: index % 7] if index % 2 else []
        if draft and index % 3 == 0:
            draft[len(draft) // 2] = 95
        requests.append(Request(prompt, dice.randrange(1, 20), draft_token_ids=draft))
    together = answers(subject.load(), *requests)
    executor = subject.load()
    for request, response in zip(requests, together, strict=True):
        [alone] = answers(executor, request)
        assert (alone.token_ids, alone.finish_reason) == (response.token_ids, response.finish_reason)
        text = continuation(request.input_token_ids, len(response.token_ids))
        assert response.token_ids == text


def test_more_requests_than_the_batch_are_served_in_order(subject: Subject, ask: Ask) -> None:
    async def main() -> list[int]:
        executor = subject.load()
        finished: list[int] = []

        async def one(index: int) -> None:
            [response] = await ask(executor, Request([index + 1, 50], 10))
            assert len(response.token_ids) == 10
            finished.append(index)

        await asyncio.gather(*(one(index) for index in range(14)))
        return finished

    finished = asyncio.run(main())
    assert sorted(finished) == list(range(14))
    assert max(abs(place - index) for place, index in enumerate(finished)) <= subject.overtaken


def test_no_more_than_the_batch_runs_at_once(subject: Subject) -> None:
    async def main() -> list[tuple[int, bool]]:
        executor, over = subject.load(), asyncio.get_running_loop().create_future()
        heard: list[tuple[int, bool]] = []

        def listen(index: int, response: Response) -> None:
            heard.append((index, response.is_final))
            if index == 5 and response.is_final:
                over.set_result(None)

        for index in range(6):
            request = Request([index + 1, 50], 30, streaming=True)
            executor.enqueue_request(request, partial(listen, index))
        await asyncio.wait_for(over, 120)
        executor.shutdown()
        return heard

    heard = asyncio.run(main())
    first = next(place for place, (index, _) in enumerate(heard) if index >= 4)
    assert {index for index, _ in heard[:first]} == {0, 1, 2, 3}
    assert any(is_final for _, is_final in heard[:first])


def test_cancel_in_the_middle(subject: Subject, continuation: Continuation, ask: Ask) -> None:
    async def main() -> tuple[list[Response], Response]:
        executor = subject.load()
        heard: list[Response] = []
        cancelled = asyncio.get_running_loop().create_future()

        def listen(response: Response) -> None:
            heard.append(response)
            if len(heard) == 3:
                executor.cancel_request(response.request_id)
            if response.is_final:
                cancelled.set_result(None)

        other = asyncio.create_task(ask(executor, Request([7, 7, 1], 40)))
        executor.enqueue_request(Request(PROMPT, 40, streaming=True), listen)
        await asyncio.wait_for(cancelled, 120)
        return heard, (await other)[0]

    heard, other = asyncio.run(main())
    assert heard[-1].finish_reason is FinishReason.CANCELLED
    assert [response.is_final for response in heard] == [False] * (len(heard) - 1) + [True]
    told = [token for response in heard for token in response.token_ids]
    assert len(heard) == 4
    assert told == continuation(PROMPT, len(told))
    assert other.token_ids == continuation([7, 7, 1], 40)


def test_cancel_while_waiting(subject: Subject, continuation: Continuation, ask: Ask) -> None:
    async def main() -> tuple[list[Response], Response, Response]:
        executor = subject.load(max_batch_size=1)
        heard: list[Response] = []
        first = asyncio.create_task(ask(executor, Request(PROMPT, 10)))
        await asyncio.sleep(0)
        request_id = executor.enqueue_request(Request([1, 2], 10), heard.append)
        executor.cancel_request(request_id)
        last = await ask(executor, Request([3, 4], 10))
        return heard, (await first)[0], last[0]

    heard, first, last = asyncio.run(main())
    assert [(r.token_ids, r.is_final, r.finish_reason) for r in heard] == [([], True, FinishReason.CANCELLED)]
    assert first.token_ids == continuation(PROMPT, 10)
    assert last.token_ids == continuation([3, 4], 10)


def test_cancelling_what_is_finished_or_unknown_is_nothing(
    subject: Subject, continuation: Continuation, ask: Ask
) -> None:
    async def main() -> list[Response]:
        executor = subject.load()
        [response] = await ask(executor, Request(PROMPT, 3))
        executor.cancel_request(response.request_id)
        executor.cancel_request(12345)
        return await ask(executor, Request(PROMPT, 5))

    [response] = asyncio.run(main())
    assert response.token_ids == continuation(PROMPT, 5)


def test_shutdown_cancels_all(subject: Subject, ask: Ask) -> None:
    async def main() -> list[Response]:
        executor = subject.load(max_batch_size=2)
        tasks = [asyncio.create_task(ask(executor, Request([i + 1], 100))) for i in range(4)]
        await asyncio.sleep(0)
        executor.shutdown()
        return [responses[-1] for responses in await asyncio.gather(*tasks)]

    for response in asyncio.run(main()):
        assert (response.is_final, response.finish_reason) == (True, FinishReason.CANCELLED)


def test_a_request_enqueued_by_a_listener_is_served(subject: Subject, continuation: Continuation) -> None:
    """A coordinator may send the next round from within the answer to the last."""

    async def main() -> Response:
        executor = subject.load()
        done: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def listen(response: Response) -> None:
            executor.enqueue_request(Request(PROMPT + response.token_ids, 5), done.set_result)

        executor.enqueue_request(Request(PROMPT, 5), listen)
        return await asyncio.wait_for(done, 120)

    assert asyncio.run(main()).token_ids == continuation(PROMPT, 10)[5:]


def test_a_listener_that_fails_harms_no_other(subject: Subject, continuation: Continuation, ask: Ask) -> None:
    async def main() -> tuple[Response, Exception]:
        loop = asyncio.get_running_loop()
        failure: asyncio.Future[Exception] = loop.create_future()
        loop.set_exception_handler(lambda _, context: failure.set_result(context["exception"]))
        executor = subject.load()

        def listen(response: Response) -> None:
            raise KeyError("listener")

        executor.enqueue_request(Request([1, 2], 5), listen)
        [response] = await ask(executor, Request(PROMPT, 12))
        return response, await asyncio.wait_for(failure, 120)

    response, error = asyncio.run(main())
    assert response.token_ids == continuation(PROMPT, 12)
    assert isinstance(error, KeyError)
