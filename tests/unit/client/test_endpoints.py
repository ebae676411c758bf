"""What servers say and do, as endpoints tell it: a server of every kind of answer, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from yarl import URL

from trtspec.base.errors import UnavailableError
from trtspec.cli.generate import summary
from trtspec.client.endpoint import AskError, ChatMessage, DraftCounts, EndpointRequest, TimedAnswer
from trtspec.client.finding import FoundServer, find, shown
from trtspec.client.http import Streams
from trtspec.client.triton import TritonEndpoint

HELLO = EndpointRequest((ChatMessage("user", "Hello"),), max_tokens=8)
TRITON_INPUTS = (
    "text_input",
    "max_tokens",
    "stream",
    "num_draft_tokens",
    "temperature",
    "top_p",
    "seed",
    "end_id",
    "return_perf_metrics",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """A server whose `answer` is what it does with a request for text; `bodies` are what it was sent."""

    def __init__(self, answer: Handler | None = None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.inputs: tuple[str, ...] = TRITON_INPUTS
        self.models = [{"id": "tiny", "owned_by": "trtspec"}]
        self.answer: Handler = answer or self.nothing
        self.port = 0

    async def nothing(self, request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def text(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.headers.append(request.headers)
        return await self.answer(request)

    async def triton(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"name": "triton", "version": "2.51.0"})

    async def triton_model(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["name"] != "speculative_llm":
            return web.json_response({"error": "unknown model"}, status=400)
        inputs = [{"name": name} for name in self.inputs]
        return web.json_response({"inputs": inputs, "outputs": [{"name": "finish_reason"}]})

    async def openai_models(self, request: web.Request) -> web.StreamResponse:
        if self.models and request.headers.get("Authorization") == "Bearer wrong":
            return web.json_response({"error": {"message": "no"}}, status=401)
        return web.json_response({"object": "list", "data": self.models})

    def app(self, *, triton: bool) -> web.Application:
        app = web.Application()
        if triton:
            app.router.add_get("/v2", self.triton)
            app.router.add_get("/v2/models/{name}", self.triton_model)
            app.router.add_post("/v2/models/speculative_llm/generate_stream", self.text)
        else:
            app.router.add_get("/v1/models", self.openai_models)
            app.router.add_post("/v1/chat/completions", self.text)
            app.router.add_post("/v1/completions", self.text)
        return app


def using(
    server: Server,
    use: Callable[[FoundServer], Awaitable[Any]],
    *,
    triton: bool,
    url: str = "",
    **options: Any,
) -> Any:
    async def work() -> Any:
        runner = web.AppRunner(server.app(triton=triton))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.port = runner.addresses[0][1]
        given = {"model": None, "chat": True, "timeout_s": 120.0, **options}
        try:
            found = await find(url or f"http://127.0.0.1:{server.port}", **given)
            try:
                return await use(found)
            finally:
                await found.endpoint.close()
        finally:
            await runner.cleanup()

    return asyncio.run(work())


def ask(server: Server, question: EndpointRequest = HELLO, *, triton: bool, **options: Any) -> TimedAnswer:
    async def use(found: FoundServer) -> TimedAnswer:
        return await found.endpoint.ask(question)

    answer: TimedAnswer = using(server, use, triton=triton, **options)
    return answer


def stream(*events: dict[str, Any] | bytes, gap: float = 0.0) -> Handler:
    """Sends each event by itself, and bytes as they are."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            data = event if isinstance(event, bytes) else f"data: {json.dumps(event)}\n\n".encode()
            await response.write(data)
            await asyncio.sleep(gap)
        return response

    return answer


LAST = {
    "text_output": "",
    "finish_reason": "length",
    "num_input_tokens": 3,
    "num_output_tokens": 5,
    "acceptance_rate": 0.5,
    "total_draft_tokens": 4,
    "total_accepted_draft_tokens": 2,
    "num_spec_steps": 2,
    "acceptance_histogram": [0, 2, 0],
}


def test_triton_streams_text_and_counts() -> None:
    server = Server()
    server.answer = stream({"text_output": "one "}, {"text_output": "two"}, LAST, gap=0.05)
    question = EndpointRequest(
        (*HELLO.messages, ChatMessage("assistant", "Hi."), ChatMessage("user", "More")),
        8,
        0,
        ignore_eos=True,
        top_p=0.5,
    )
    answer = ask(server, question, triton=True)
    assert answer.text == "one two"
    assert len(answer.times) == 2
    assert answer.sent < answer.times[0] < answer.times[0] + 0.04 < answer.times[1] < answer.ended
    assert (answer.num_input_tokens, answer.num_output_tokens, answer.finish_reason) == (3, 5, "length")
    assert answer.drafts == DraftCounts(2, 4, 2, (0, 2, 0))
    assert server.bodies[0] == {
        "text_input": "Hello\n\nHi.\n\nMore",
        "max_tokens": 8,
        "stream": True,
        "num_draft_tokens": 0,
        "temperature": 0.0,  # With a top_p alone the model would sample.
        "top_p": 0.5,
        "end_id": -1,
        "return_perf_metrics": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }


def test_a_model_of_triton_gets_only_the_inputs_that_it_has() -> None:
    server = Server()
    server.inputs = ("text_input", "max_tokens")
    server.answer = stream({"text_output": "x", "finish_reason": "stop"})

    async def use(found: FoundServer) -> bool:
        await found.endpoint.ask(HELLO)
        return found.endpoint.plain_per_request

    assert using(server, use, triton=True) is False
    assert server.bodies == [{"text_input": "Hello", "max_tokens": 8}]


def test_tritons_vllm_backend_takes_sampling_parameters_and_counts_each_event() -> None:
    """As its `src/utils/request.py` makes the answers of a stream, whose reason is "None" until the end."""
    server, heard = Server(), list[str]()
    server.inputs = ("text_input", "stream", "sampling_parameters", "return_num_output_tokens")
    counts = {"num_input_tokens": 3, "num_output_tokens": 2}
    first = {"text_output": "one ", "finish_reason": "None", **counts}
    server.answer = stream(first, {"text_output": "two", "finish_reason": "length", **counts})
    question = EndpointRequest(HELLO.messages, 8, seed=3, top_k=5, stop=("\n",), ignore_eos=True)

    async def use(found: FoundServer) -> tuple[TimedAnswer, bool]:
        return await found.endpoint.ask(question, heard.append), found.endpoint.plain_per_request

    answer, plain = using(server, use, triton=True)
    assert (answer.text, heard, plain) == ("one two", ["one ", "two"], False)
    assert (answer.num_input_tokens, answer.num_output_tokens, answer.finish_reason) == (3, 4, "length")
    (body,) = server.bodies
    assert json.loads(body.pop("sampling_parameters")) == {
        "max_tokens": 8,
        "temperature": 0.0,
        "seed": 3,
        "top_k": 5,
        "stop": ["\n"],
        "ignore_eos": True,
    }
    wanted = ("stream", "return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")
    assert body == {"text_input": "Hello", **dict.fromkeys(wanted, True)}


CHUNKS = (
    {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    {"choices": [{"delta": {"content": "one "}, "finish_reason": None}]},
    {"choices": [{"delta": {"content": "two"}, "finish_reason": None}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}},
    b"data: [DONE]\n\n",
)


@pytest.mark.parametrize("owner", ["trtspec", "vllm"])
def test_openai_streams_text_and_usage(owner: str) -> None:
    """Only trtspec's API is asked for plain decoding: another would take no notice of the field."""
    server = Server()
    server.models = [{"id": "tiny", "owned_by": owner}]
    metrics = {"speculative_decoding": {"acceptance_histogram": [1, 0, 2]}}
    server.answer = stream(*CHUNKS[:3], {**CHUNKS[3], "metrics": metrics}, *CHUNKS[4:])
    question = EndpointRequest(HELLO.messages, 8, 0, temperature=0.5, seed=3)

    async def use(found: FoundServer) -> tuple[TimedAnswer, bool, str | None]:
        return await found.endpoint.ask(question), found.endpoint.plain_per_request, found.software

    answer, plain, software = using(server, use, triton=False)
    assert (answer.text, len(answer.times), answer.finish_reason) == ("one two", 2, "stop")
    assert (answer.num_input_tokens, answer.num_output_tokens) == (3, 5)
    assert answer.drafts == DraftCounts(3, 6, 4, (1, 0, 2))
    assert (plain, software) == (owner == "trtspec", owner)
    expected = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 8,
        "temperature": 0.5,
        "seed": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert server.bodies[0] == expected | ({"num_draft_tokens": 0} if plain else {})


def test_completions_are_plain_text_and_a_key_is_sent() -> None:
    server = Server()
    server.answer = stream({"choices": [{"text": "one", "finish_reason": "length"}]})
    question = EndpointRequest(HELLO.messages, 8, top_k=5, top_p=0.9, stop=("\n",))
    answer = ask(server, question, triton=False, chat=False, key="secret")
    assert (answer.text, answer.num_output_tokens, answer.drafts) == ("one", None, None)
    assert server.bodies[0]["prompt"] == "Hello"
    assert [server.bodies[0][name] for name in ("top_k", "top_p", "stop")] == [5, 0.9, ["\n"]]
    assert server.headers[0]["Authorization"] == "Bearer secret"


def test_events_may_come_in_any_pieces() -> None:
    whole = b"".join(
        b": a comment\r\n\r\n"
        + (chunk if isinstance(chunk, bytes) else b"data: %s\r\n\r\n" % json.dumps(chunk).encode())
        for chunk in CHUNKS
    )
    server = Server()
    server.answer = stream(*(whole[place : place + 7] for place in range(0, len(whole), 7)))
    assert ask(server, triton=False).text == "one two"


async def _breaks_off(request: web.Request) -> web.StreamResponse:
    response = await stream({"text_output": "one "})(request)
    assert request.transport is not None
    request.transport.close()
    return response


def _status(status: int, body: str) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body)

    return answer


@pytest.mark.parametrize(
    ("answer", "kind", "problem"),
    [
        (_status(503, '{"error": "the queue is full"}'), "refused", "503: the queue is full"),
        (_status(429, '{"error": {"message": "later"}}'), "refused", "429: later"),
        (_status(400, '{"error": "prompt is long"}'), "rejected", "400: prompt is long"),
        (_status(500, "<html>oh\nno</html>"), "failed", "500: <html>oh no</html>"),
        (stream({"text_output": "a"}, {"error": "engine lost"}), "failed", "engine lost"),
        (stream({"text_output": "a"}), "broken_off", "the stream ended before the answer"),
        (stream(b"data: {oh\n\n"), "unreadable", "not JSON"),
        (stream(b"data: null\n\n"), "unreadable", "no event of this API: None"),
        (stream({"text_output": ["a"]}), "unreadable", "no event of this API: {'text_output': ['a']}"),
        (stream({"text_output": "a"}, gap=1.0), "timed_out", ""),
        (_breaks_off, "broken_off", ""),
    ],
)
def test_every_failure_has_a_kind(answer: Handler, kind: str, problem: str) -> None:
    with pytest.raises(AskError) as caught:
        ask(Server(answer), triton=True, timeout_s=0.5 if kind == "timed_out" else 120.0)
    assert caught.value.kind == kind
    assert problem in caught.value.problem
    assert caught.value.sent > 0


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({"choices": ["a"]}, "unreadable: no event of this API"),
        ({"choices": [], "usage": {"prompt_tokens": 1}}, "unreadable: no event"),
        ({"choices": [], "sglext": {"spec_tokens_details": {"spec_verify_ct": 1}}}, "unreadable: no event"),
        ({"error": "engine lost"}, "failed: engine lost$"),
        ({"error": {"message": "engine lost", "type": "server_error", "code": None}}, "failed: engine lost$"),
    ],
)
def test_an_event_of_openais_that_is_none_or_an_error_is_one_failure(
    event: dict[str, Any], told: str
) -> None:
    with pytest.raises(AskError, match=f"^{told}"):
        ask(Server(stream(event)), triton=False)


def test_an_error_that_is_none_is_none() -> None:
    server = Server()
    server.answer = stream(*({**chunk, "error": None} for chunk in CHUNKS if isinstance(chunk, dict)))
    assert ask(server, triton=False).text == "one two"


@pytest.mark.parametrize("models", [None, [], ["tiny"], [{"name": "tiny"}]])
def test_an_answer_that_is_no_list_of_models_is_reported(models: Any) -> None:
    server = Server()
    server.models = models
    with pytest.raises(UnavailableError, match="has no list of models"):
        ask(server, triton=False)


def test_a_model_of_several_names_is_asked_by_the_first() -> None:
    server = Server()
    server.models = [{"id": name, "root": "/models/tiny"} for name in ("tiny", "org/tiny")]
    server.answer = stream(*CHUNKS)
    ask(server, triton=False)
    assert server.bodies[-1]["model"] == "tiny"
    server.models = [{"id": name, "root": name} for name in ("tiny", "org/tiny")]
    with pytest.raises(UnavailableError, match="has several models: tiny, org/tiny"):
        ask(server, triton=False)


@pytest.mark.parametrize("url", ["http://me:secret@host:99999", "http://[::1", "http://host:port/v1"])
def test_an_invalid_url_is_reported_without_its_password(url: str) -> None:
    with pytest.raises(UnavailableError, match="is not a URL: ") as caught:
        ask(Server(), triton=False, url=url)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_gone_is_unreachable() -> None:
    async def use() -> None:
        streams = Streams(timeout_s=120.0)
        try:
            inputs = frozenset(TRITON_INPUTS)
            await TritonEndpoint("http://127.0.0.1:1", "m", inputs, frozenset(), streams).ask(HELLO)
        finally:
            await streams.close()

    with pytest.raises(AskError) as caught:
        asyncio.run(use())
    assert caught.value.kind == "unreachable"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": "other"}, "has no model other"),
        ({"url": "ftp://host:8000"}, "is not a URL"),
        ({"url": "http://me:word@host:8000", "key": "k"}, "http://host:8000: has a user name in it"),
        ({"url": "http://127.0.0.1:1"}, "does not answer"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_reported_with_the_reason(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UnavailableError, match=problem):
        ask(Server(), triton=True, **options)


def test_a_wrong_key_is_told_and_not_shown() -> None:
    with pytest.raises(UnavailableError, match="an API key is required") as caught:
        ask(Server(), triton=False, key="wrong")
    assert "wrong" not in str(caught.value)


def test_a_url_is_shown_without_its_secrets() -> None:
    assert shown("https://me:word@host:9000/v1?key=1") == "https://host:9000/v1"


def test_a_text_that_is_not_utf_8_is_not_sent() -> None:
    async def main() -> None:
        streams = Streams(timeout_s=5)
        try:
            await anext(streams.post(URL("http://127.0.0.1:1/v1/completions"), {"prompt": "a\udcff"}, 0.0))
        finally:
            await streams.close()

    with pytest.raises(AskError, match=r"^rejected: the text is not UTF-8$"):
        asyncio.run(main())


@pytest.mark.parametrize("triton", [True, False])
def test_the_summary_says_why_nothing_was_drafted(triton: bool) -> None:
    server, why = Server(), "a step with drafts takes longer here just now"
    if triton:
        none = dict.fromkeys(("num_spec_steps", "total_draft_tokens", "total_accepted_draft_tokens"), 0)
        said = {**LAST, **none, "acceptance_histogram": [0, 0], "speculation": "off: policy"}
        server.answer = stream({"text_output": "one"}, said)
    else:
        counts = {"acceptance_histogram": [0, 0], "num_draft_tokens": 0, "nothing_drafted": why}
        metrics = {"speculative_decoding": counts}
        server.answer = stream(*CHUNKS[:3], {**CHUNKS[3], "metrics": metrics}, *CHUNKS[4:])
    assert summary(ask(server, HELLO, triton=triton)).endswith(f", nothing drafted: {why}")
