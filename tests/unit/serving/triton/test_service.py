"""The loop behind the edge, with scripted engines and clients that listen."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.scripted_executor import ScriptedExecutor, babble
from tests.fakes.stub_messages import ENDED_MODELS
from tests.unit.serving.rollout.test_rollout import put
from tests.unit.serving.triton.conftest import ENDLESS, LIMITS, SECONDS, Serve, ask
from trtspec.serving.admission import ServingBounds
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Request, SamplingConfig
from trtspec.serving.metrics import counters, histograms
from trtspec.serving.rollout.state import RolloutFile
from trtspec.serving.stats import Stats
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton.engines import EnginePair
from trtspec.serving.triton.outbox import Outbox, RequestClient
from trtspec.serving.triton.requests import ResponseOptions
from trtspec.serving.triton.responses import Code, Failure
from trtspec.serving.triton.service import CoordinatorService


def left_behind(others: set[threading.Thread]) -> list[threading.Thread]:
    """The threads of ours that have begun since `others` were all that ran."""
    return [each for each in threading.enumerate() if each not in others and each.name.startswith("trtspec-")]


def test_one_answer_or_a_stream_are_the_same_text(serve: Serve) -> None:
    service, _ = serve(delay=0.001)
    whole, streamed = ask(service, ENDLESS), ask(service, ENDLESS, ResponseOptions(stream=True))

    assert whole.text() == streamed.text() != ""
    assert len(whole.heard) == 1
    assert len(streamed.heard) > 1
    assert all(chunk.text for chunk in streamed.heard[:-1])
    assert whole.heard[0].completion is not None
    assert whole.heard[0].completion.num_output_tokens == 400


def test_the_service_follows_changes_of_the_rollout_file(serve: Serve, tmp_path: Path) -> None:
    """The first look is before the first request, the others every second, on another thread."""
    service, _ = serve()
    path, named, texts = tmp_path / "rollout.json", replace(ENDLESS, num_draft_tokens=None), set()

    def drafted() -> int:
        client = ask(service, named)
        texts.add(client.text())
        assert client.heard[-1].completion is not None
        return client.heard[-1].completion.speculation.num_draft_tokens

    assert drafted() > 0
    path.write_text('{"version": 1, "mode": "speculate", "share": 0}')
    service.follow(RolloutFile(path))
    assert drafted() == 0
    put(path, '{"version": 1, "mode": "speculate", "share": 1}')
    deadline = time.monotonic() + SECONDS
    while not drafted():
        assert time.monotonic() < deadline
    assert len(texts) == 1


def test_log_probs_of_an_answer_and_of_a_stream_are_the_same(serve: Serve) -> None:
    service, _ = serve(delay=0.001)
    request = replace(ENDLESS, return_log_probs=True)
    whole, streamed = ask(service, request), ask(service, request, ResponseOptions(stream=True))

    assert whole.text() == streamed.text()
    assert len(streamed.heard) > 1
    said = [value for chunk in streamed.heard for value in chunk.log_probs]
    assert len(said) == 400
    assert whole.heard[0].log_probs == said


@pytest.mark.parametrize("stream", [False, True])
def test_several_completions_have_their_own_chunks(serve: Serve, stream: bool) -> None:
    service, _ = serve(delay=0.001)
    alone = ask(service, ENDLESS, ResponseOptions(prefix="hello")).text()
    client = ask(service, replace(ENDLESS, num_return_sequences=3), ResponseOptions(stream, "hello"))

    assert client.failure() is None
    texts = ["".join(chunk.text for chunk in client.heard if chunk.sequence_index == i) for i in range(3)]
    assert texts == [alone] * 3
    assert len([chunk for chunk in client.heard if chunk.completion is not None]) == 3
    assert [chunk.is_last for chunk in client.heard] == [False] * (len(client.heard) - 1) + [True]
    assert (len(client.heard) > 3) == stream


def test_more_completions_than_places_are_refused(serve: Serve) -> None:
    service, _ = serve()

    for count in (0, 9, 2**31 - 1):
        assert ask(service, replace(ENDLESS, num_return_sequences=count)).failure() == Failure(
            f"num_return_sequences is {count}; it must be 1 to 8, the number of completions that run at once",
            Code.INVALID_ARG,
        )


def test_a_failure_of_one_completion_is_that_of_the_request(serve: Serve) -> None:
    service, _ = serve(
        delay=0.001,
        fails=lambda request: "out of memory" if (request.sampling.seed or 0) >= 2**40 else None,
    )
    sampling = SamplingConfig(temperature=1.0, seed=1)
    request = replace(ENDLESS, num_return_sequences=3, sampling=sampling)

    for wanted in (ResponseOptions(), ResponseOptions(stream=True)):
        client = ask(service, request, wanted)
        assert client.failure() == Failure("out of memory", Code.INTERNAL)
        assert [chunk.is_last for chunk in client.heard].count(True) == 1


def test_the_prompt_comes_first_when_it_is_wanted(serve: Serve) -> None:
    service, _ = serve()
    bare = ask(service, ENDLESS).text()

    assert ask(service, ENDLESS, ResponseOptions(prefix="hello")).text() == "hello" + bare
    assert ask(service, ENDLESS, ResponseOptions(prefix="hello", stream=True)).text() == "hello" + bare


def test_many_requests_run_at_once(serve: Serve) -> None:
    service, target = serve(delay=0.002)
    clients = [ask(service, CompletionRequest(f"hello {i}", max_tokens=40, end_id=NO_END)) for i in range(8)]

    texts = [client.text() for client in clients]

    prompts = [tuple(request.input_token_ids[:8]) for request in target.requests]
    turns = sum(before != after for before, after in itertools.pairwise(prompts))
    assert turns > 40
    assert len(set(texts)) == 8


def test_a_bad_request_is_the_clients(serve: Serve) -> None:
    service, _ = serve()

    assert ask(service, CompletionRequest("hello", max_tokens=0)).failure() == Failure(
        "max_tokens is 0; it must be at least 1", Code.INVALID_ARG
    )
    assert ask(service, CompletionRequest("hello", max_tokens=3, end_id=NO_END)).failure() is None


def test_an_engines_failure_is_the_servers(serve: Serve) -> None:
    service, _ = serve(fails=lambda request: "out of memory" if len(request.input_token_ids) == 5 else None)

    failed = ask(service, CompletionRequest("wrong", max_tokens=4, end_id=NO_END))

    assert failed.failure() == Failure("out of memory", Code.INTERNAL)
    assert ask(service, CompletionRequest("rightly", max_tokens=4, end_id=NO_END)).failure() is None


@pytest.mark.parametrize("message", ENDED_MODELS)
def test_an_engine_whose_process_has_ended_is_worth_another_try(serve: Serve, message: str) -> None:
    service, _ = serve(
        fails=lambda request: f"tensorrt_llm: {message}" if len(request.input_token_ids) == 5 else None
    )
    failed = ask(service, CompletionRequest("wrong", max_tokens=4, end_id=NO_END)).failure()
    assert failed == Failure(f"tensorrt_llm: {message}", Code.UNAVAILABLE)


def test_a_defect_is_one_line_and_a_trace_in_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    def defect(request: Request) -> None:
        if len(request.input_token_ids) == 5:
            raise ZeroDivisionError("secret/path.py")

    service, _ = serve(fails=defect)
    with caplog.at_level(logging.ERROR):
        failure = ask(service, CompletionRequest("wrong", max_tokens=4, end_id=NO_END)).failure()

    assert failure is not None
    assert failure.code is Code.INTERNAL
    assert "secret" not in failure.message
    assert "ZeroDivisionError" in caplog.text
    assert ask(service, CompletionRequest("rightly", max_tokens=4, end_id=NO_END)).failure() is None


def test_a_client_that_leaves_frees_the_engines(serve: Serve) -> None:
    busy, idle = threading.Event(), threading.Event()

    def watch(stats: Stats) -> None:
        if stats.running:
            busy.set()
        elif busy.is_set():
            idle.set()

    service, target = serve(delay=0.05, tick=watch)
    client = ask(service, ENDLESS, ResponseOptions(stream=True))
    assert client.is_streaming.wait(SECONDS)
    assert busy.wait(SECONDS)

    client.left = True

    assert client.failure() == Failure("the request was cancelled", Code.CANCELLED)
    assert idle.wait(SECONDS)
    assert len(target.requests) < 100


def test_a_client_that_leaves_before_anything_runs_is_told_and_ends_nothing_else(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = serve()
    open_outbox = service._sender.open

    def open_and_leave(client: RequestClient, on_leave: Callable[[], object]) -> Outbox:
        outbox = open_outbox(client, on_leave)
        on_leave()
        return outbox

    monkeypatch.setattr(service._sender, "open", open_and_leave)
    client = ask(service, ENDLESS)

    assert client.failure() == Failure("the request was cancelled", Code.CANCELLED)
    monkeypatch.undo()
    assert ask(service, CompletionRequest("others", max_tokens=4, end_id=NO_END)).failure() is None


def test_closing_tells_those_who_wait(serve: Serve, tokenizer: Tokenizer) -> None:
    others = set(threading.enumerate())
    target = ScriptedExecutor(LIMITS, babble(LIMITS.vocab_size), delay=0.01)
    service = CoordinatorService(lambda: EnginePair(target, None, tokenizer), lambda stats: None)
    client = ask(service, ENDLESS, ResponseOptions(stream=True))
    assert client.is_streaming.wait(SECONDS)

    service.close()

    stopped = Failure("the server is stopping, and the request was cancelled", Code.UNAVAILABLE)
    assert client.failure() == stopped
    assert not left_behind(others)


def test_draining_lets_those_at_work_end_and_nobody_in(serve: Serve) -> None:
    service, _ = serve(delay=0.005, bounds=ServingBounds(max_places=1))
    working, waiting = ask(service, ENDLESS, ResponseOptions(stream=True)), ask(service, ENDLESS)
    assert working.is_streaming.wait(SECONDS)

    service._loop.post(service.drain, SECONDS)

    stopping = Failure("the server is stopping; try again later", Code.UNAVAILABLE)
    assert waiting.failure() == stopping
    assert ask(service, ENDLESS).failure() == stopping
    assert working.failure() is None
    assert working.heard[-1].completion is not None
    assert working.heard[-1].completion.num_output_tokens == 400


def test_a_drain_ends_when_the_grace_does(serve: Serve) -> None:
    service, target = serve(delay=0.01)
    client = ask(service, ENDLESS, ResponseOptions(stream=True))
    assert client.is_streaming.wait(SECONDS)

    service._loop.post(service.drain, 0.05)

    assert client.failure() == Failure(
        "the server is stopping, and the request was cancelled", Code.UNAVAILABLE
    )
    assert target.in_flight == 0


def test_engines_that_are_gone_end_the_process_when_all_have_been_told(serve: Serve) -> None:
    service, target = serve(delay=0.01)
    clients = [ask(service, ENDLESS, ResponseOptions(stream=True)) for _ in range(3)]
    assert all(client.is_streaming.wait(SECONDS) for client in clients)

    target.failure = "CUDA error: an illegal memory access was encountered"

    for client in clients:
        assert client.failure() == Failure(target.failure, Code.INTERNAL)
    refused = ask(service, ENDLESS).failure()
    assert refused is not None
    assert refused.code is Code.UNAVAILABLE
    assert serve.watchdog.has_given_up.wait(SECONDS)
    assert serve.watchdog.reason == target.failure


def test_the_watchdog_hears_that_the_loop_turns(serve: Serve) -> None:
    serve()
    assert serve.watchdog.has_beaten.wait(SECONDS)


def test_a_full_queue_is_worth_another_try(serve: Serve) -> None:
    service, _ = serve(delay=0.002, bounds=ServingBounds(max_places=1, max_queue_size=1))
    clients = [ask(service, ENDLESS) for _ in range(6)]

    ends = [client.failure() for client in clients]

    assert ends[:2] == [None, None]
    busy = "1 completions are running and 1 wait already; try again later"
    assert ends[2:] == [Failure(busy, Code.UNAVAILABLE)] * 4


def test_the_warm_up_counts_nowhere(serve: Serve) -> None:
    told = threading.Event()
    first: list[Stats] = []

    def hear(stats: Stats) -> None:
        first.append(stats)
        told.set()

    serve(tick=hear)

    assert told.wait(SECONDS)
    counted = [[*counters(stats, 0), *histograms(stats)] for stats in (first[0], Stats())]
    assert counted[0] == counted[1]


def test_engines_that_do_not_load_or_run_are_the_callers_error(tokenizer: Tokenizer) -> None:
    def missing() -> EnginePair:
        raise EngineLoadError("config.json", "no such file")

    others = set(threading.enumerate())
    with pytest.raises(EngineLoadError, match="no such file"):
        CoordinatorService(missing, lambda stats: None)
    broken = ScriptedExecutor(LIMITS, babble(LIMITS.vocab_size), fails=lambda request: "no kernel")
    whole = ScriptedExecutor(LIMITS, babble(LIMITS.vocab_size))
    for load in (lambda: EnginePair(broken, None, tokenizer), lambda: EnginePair(whole, broken, tokenizer)):
        with pytest.raises(EngineLoadError, match="cannot run: no kernel"):
            CoordinatorService(load, lambda stats: None)
    assert not left_behind(others)
