"""Defines the routes of the API, and runs each request: names it, asks the model, forwards its pieces.

A request has the client's own name, or a new one. The model's log has the name, the answer's `id` ends with
it as in vLLM, and the answer's header `X-Request-Id` has it, which OpenAI's clients show as `_request_id`. A
request ends when its client leaves.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, Protocol, TypeVar

import orjson
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from trtspec.gateway.client_bounds import SHORT_BODY, Bodies, BodyError
from trtspec.gateway.openai import model_request, openapi
from trtspec.gateway.openai.answers import DONE, Chat, Completions, FunctionChat, ResponseBuilder
from trtspec.gateway.openai.chat_template import ChatTemplate, Renderer
from trtspec.gateway.openai.errors import ApiError, ShutError
from trtspec.gateway.openai.keys import Keys
from trtspec.gateway.openai.model_output import ChoicePiece, of_guide, piece
from trtspec.gateway.openai.model_request import ModelRequest
from trtspec.gateway.openai.responses import ItemsBuilder, ResponsesBody, as_chat
from trtspec.gateway.openai.sampling_defaults import with_defaults
from trtspec.gateway.openai.schema import (
    ChatRequest,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
    parse_body,
)
from trtspec.gateway.openai.settings import ModelCard
from trtspec.gateway.openai.upstream import Upstream
from trtspec.gateway.origins import EVERYBODY, Origins
from trtspec.gateway.refusals import OF_BODIES, Refusal, Refusals
from trtspec.serving.awaiting import interleave
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton.agreement import HEADER, ID, LONGEST

RawHeaders = list[tuple[bytes, bytes]]
T = TypeVar("T")

_KEY = "trtspec.request_id"
_HEADER = HEADER.encode()
_JSON = (b"content-type", b"application/json")
# A client's trace, which continues in Triton's spans (https://www.w3.org/TR/trace-context).
_TRACE = (b"traceparent", b"tracestate")
# Proxies that collect what they pass on would spoil a stream.
_STREAM: RawHeaders = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Places:
    """`most` slots; a request takes one, and one more for each prompt after its first."""

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0

    def check(self, prompts: int) -> None:
        """Raises `ApiError` 400 for a request with more prompts than slots: it would never be served."""
        if prompts > self._most:
            message = f"prompt has {prompts} prompts, but this server runs at most {self._most} at once"
            raise ApiError(400, f"{message}; send them in several requests", param="prompt")

    @contextmanager
    def taken(self, number: int) -> Iterator[None]:
        """Takes slots for the block; raises `ApiError` 429 if fewer are free."""
        if self._taken + number > self._most:
            message = f"{self._taken} of {self._most} prompts are running, so {number} more are too many"
            raise ApiError(429, f"{message}; try again later", code="rate_limit_exceeded")
        self._taken += number
        try:
            yield
        finally:
            self._taken -= number


class AnswerBuilder(Protocol):
    """Makes bytes from the pieces of an answer: all at once, or as events."""

    def whole(self, pieces: Iterable[ChoicePiece]) -> bytes: ...

    def chunk(self, pieces: Iterable[ChoicePiece]) -> bytes: ...

    def end(self) -> bytes: ...


class Exchange(Response):
    """An answer of the model to a `request`, whose whole body has come.

    Its request has one of the `places`; raises `ApiError` if there are too few for the other prompts.
    """

    def __init__(
        self, upstream: Upstream, request: ModelRequest, answer: AnswerBuilder, places: Places
    ) -> None:
        super().__init__()
        self._upstream, self._request, self._answer, self._places = upstream, request, answer, places
        self._trace: RawHeaders = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._trace = [header for header in scope["headers"] if header[0] in _TRACE]
        prompts = len(self._request.inputs)
        self._places.check(prompts)
        with self._places.taken(prompts - 1), suppress(ClientDisconnect):
            await unless_left(receive, self._tell(send, id_headers(scope)))

    async def _tell(self, send: Send, name: RawHeaders) -> None:
        if self._request.stream:
            await self._stream(send, name)
            return
        try:
            pieces = [piece async for batch in self._pieces() for piece in batch]
            body = self._answer.whole(pieces)
        except ApiError as error:
            await _send_error(send, error, name)
            return
        await _begin(send, 200, [_JSON, (b"content-length", str(len(body)).encode()), *name])
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, send: Send, name: RawHeaders) -> None:
        has_begun = False
        try:
            async with aclosing(self._pieces()) as batches:
                async for batch in batches:
                    data = self._answer.chunk(batch)
                    if not has_begun:
                        await _begin(send, 200, [*_STREAM, *name])
                        has_begun = True
                    if data:
                        await send({"type": "http.response.body", "body": data, "more_body": True})
            end = self._answer.end()
        except ApiError as error:
            if not has_begun:
                await _send_error(send, error, name)
                return
            end = b"data: " + error.body() + b"\n\n" + DONE
        await send({"type": "http.response.body", "body": end})

    async def _pieces(self) -> AsyncGenerator[list[ChoicePiece], None]:
        """Yields what the model says, until every choice has its last piece; raises `ApiError`."""
        left, inputs = self._request.num_choices, self._request.inputs
        # An error of one prompt ends the others.
        asked = [self._one(number) for number in range(len(inputs))]
        async with aclosing(asked[0] if len(asked) == 1 else interleave(asked)) as batches:
            async for batch in batches:
                left -= sum(piece.finish_reason is not None for piece in batch)
                yield batch
        if left:
            raise ApiError(503, "the server ended before the answer was complete")

    async def _one(self, number: int) -> AsyncGenerator[list[ChoicePiece], None]:
        first = number * self._request.num_sequences
        async with aclosing(self._upstream.ask(self._request.inputs[number], self._trace)) as batches:
            try:
                async for batch in batches:
                    yield [piece(said, first) for said in batch]
            except ApiError as error:
                raise of_guide(error, self._request.guided_by, self._request.guide_kind) from None


async def _begin(send: Send, status: int, headers: RawHeaders) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send_error(send: Send, error: ApiError, name: RawHeaders) -> None:
    body = error.body()
    more = [(header.lower().encode(), value.encode()) for header, value in error.headers.items()]
    await _begin(send, error.status, [_JSON, (b"content-length", str(len(body)).encode()), *more, *name])
    await send({"type": "http.response.body", "body": body})


async def unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Returns or raises what the work does.

    If the client leaves, ends the work and raises `ClientDisconnect`. The body of the request must have been
    read.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def name_request(scope: Scope) -> None:
    """Names the request of this scope."""
    given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
    scope[_KEY] = given[:LONGEST].decode("latin-1") or uuid.uuid4().hex


def request_id(scope: Scope) -> str:
    """Returns the name that the request was given; empty where it has none."""
    name: str = scope.get(_KEY, "")
    return name


def id_headers(scope: Scope) -> RawHeaders:
    """Returns the header that tells the client the name, if there is one."""
    name = request_id(scope)
    return [(_HEADER, name.encode("latin-1"))] if name else []


_NO_TEMPLATE = (
    "this model has no chat template, so it takes no messages; send a prompt to /v1/completions, or serve a "
    "model whose tokenizer has a chat template"
)
_ROUTES = "; send chats to /v1/chat/completions, and prompts to /v1/completions"
_MOST_HELD = 256 << 20
B = TypeVar("B", ChatRequest, ResponsesBody)
_REFUSALS = {**OF_BODIES, 401: Refusal.UNAUTHORIZED, 429: Refusal.TOO_MANY_REQUESTS, 504: Refusal.NOT_READY}


@dataclass(frozen=True, slots=True)
class ModelText:
    """The template, tokenizer and other facts of the model for the API."""

    template: ChatTemplate | None = None
    tokenizer: Tokenizer | None = None
    """Without it tokens have no names."""
    problem: str = ""
    """Says more of why there is no template."""
    card: ModelCard = field(default_factory=ModelCard)
    sampling: Mapping[str, float] = field(default_factory=dict)
    """The fields that a body without them gets (`sampling_defaults.py`)."""


def make_app(
    upstream: Upstream,
    texts: ModelText,
    renderer: Renderer | None,
    keys: Keys,
    refusals: Refusals,
    max_requests: int,
    origins: Origins = EVERYBODY,
) -> ASGIApp:
    """Returns the application; at most `max_requests` run at once, and each prompt counts as one.

    The `renderer` renders the template of the `texts`. `refusals` counts the application's own refusals for
    `/metrics`.
    """
    places, errors = Places(max_requests), _Errors(refusals)
    routes = _Routes(upstream, texts, renderer, keys, places)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/responses", routes.responses, methods=["POST"]),
            Route("/v1/responses/{rest:path}", _no_responses, methods=["GET", "POST", "DELETE"]),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.model),
            Route("/tokenize", routes.tokenize, methods=["POST"]),
            Route("/detokenize", routes.detokenize, methods=["POST"]),
            Route("/health", routes.health),
            Route("/ping", routes.health, methods=["GET", "POST"]),
            Route("/version", routes.version),
            Route("/metrics", errors.metrics),
            Route("/openapi.json", openapi.as_json),
            Route("/docs", openapi.as_page),
        ],
        exception_handlers={
            ApiError: errors.api,
            HTTPException: errors.http,
            ClientDisconnect: _gone,
            Exception: _defect,
        },
    )
    return _Bounded(app, places, refusals, origins)


class _Bounded:
    """Names requests, and answers 403 to those of web pages and 429 to those without a slot.

    It does so before it reads anything of them.
    """

    def __init__(self, app: ASGIApp, places: Places, refusals: Refusals, origins: Origins) -> None:
        self._app, self._places, self._refusals, self._origins = app, places, refusals, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if problem := self._origins.problem(headers.get("host"), headers.get("origin")):
            if scope["method"] == "POST":
                self._refusals.add(Refusal.UNAUTHORIZED)
            await _response(ApiError(403, problem), scope)(scope, receive, send)
            return
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        name_request(scope)
        with ExitStack() as place:
            try:
                place.enter_context(self._places.taken(1))
            except ApiError as error:
                self._refusals.add(Refusal.TOO_MANY_REQUESTS)
                await _response(error, scope)(scope, receive, send)
                return
            await self._app(scope, receive, send)


class _Routes:
    def __init__(
        self, upstream: Upstream, texts: ModelText, renderer: Renderer | None, keys: Keys, places: Places
    ) -> None:
        self._upstream, self._texts, self._renderer, self._keys = upstream, texts, renderer, keys
        self._places = places
        self._bodies, self._began = Bodies(_MOST_HELD), int(time.time())

    async def chat(self, request: Request) -> Response:
        said, asked = await self._chat_request(request, ChatRequest, model_request.with_tools)
        if said.functions and asked.guided_by == "tool_choice":
            asked = replace(asked, guided_by="function_call")
        return await self._exchange(request, FunctionChat() if said.functions else Chat(), asked, said)

    async def responses(self, request: Request) -> Response:
        said, asked = await self._chat_request(request, ResponsesBody, as_chat)
        if asked.guided_by == "response_format":
            asked = replace(asked, guided_by="text.format")
        name = self._name(request, asked)
        return Exchange(self._upstream, asked, ItemsBuilder(said, asked, name), self._places)

    async def _chat_request(
        self, request: Request, kind: type[B], as_request: Callable[[B], ChatRequest]
    ) -> tuple[B, model_request.ModelRequest]:
        """Returns the body of a chat, and what it asks of the model."""
        tenant = self._tenant(request)
        async with self._body(request) as body:
            said: B = await _read(body, kind)
            self._check_model(said.model)
            wanted = with_defaults(as_request(said), self._texts.sampling)
            # A chat that waits for the template takes as much memory as its body.
            template, prompt = await self._prompt(request, wanted)
        parser = self._texts.card.reasoning_parser
        return said, model_request.chat(wanted, prompt, template, tenant, self._texts.tokenizer, parser)

    async def _prompt(self, request: Request, wanted: ChatRequest) -> tuple[str, str]:
        renderer = self._renderer
        if renderer is None:
            raise ApiError(400, _NO_TEMPLATE + self._texts.problem, "messages")
        tools = model_request.template_tools(wanted)
        template = renderer.template.of(tools)
        if tools and "tools" not in template:
            raise ApiError(400, "this model's chat template takes no tools", "tools")
        values = model_request.template_values(wanted, template)
        rendering = renderer.render(model_request.template_messages(wanted), tools, values)
        prompt = await unless_left(request.receive, rendering)
        return template, model_request.continued(prompt, wanted)

    async def completions(self, request: Request) -> Response:
        tenant = self._tenant(request)
        async with self._body(request) as body:
            said = await _read(body, CompletionBody)
        self._check_model(said.model)
        wanted = with_defaults(said, self._texts.sampling)
        asked = model_request.completion(wanted, tenant, self._texts.tokenizer)
        return await self._exchange(request, Completions(), asked, said)

    async def tokenize(self, request: Request) -> Response:
        self._tenant(request)
        async with self._body(request) as body:
            said = await _read(body, TokenizeBody)
            tokenizer = self._tokenizer(said.model)
            prompt = said.prompt
            if prompt is None:
                _, prompt = await self._prompt(request, model_request.with_tools(said.chat))
            longest = self._texts.card.max_model_len
            return await asyncio.to_thread(_tokenized, tokenizer, said, prompt, longest)

    async def detokenize(self, request: Request) -> Response:
        self._tenant(request)
        async with self._body(request) as body:
            said = await _read(body, DetokenizeBody)
            return await asyncio.to_thread(_detokenized, self._tokenizer(said.model), said)

    def _tokenizer(self, model: str | None) -> Tokenizer:
        if model is not None:
            self._check_model(model)
        if self._texts.tokenizer is None:
            raise ApiError(400, "this server has no tokenizer of the model")
        return self._texts.tokenizer

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": version("trtspec")})

    async def models(self, request: Request) -> Response:
        self._tenant(request)
        return JSONResponse({"object": "list", "data": [self._card(name) for name in self._names]})

    async def model(self, request: Request) -> Response:
        self._tenant(request)
        name = request.path_params["name"]
        self._check_model(name)
        return JSONResponse(self._card(name))

    async def health(self, _: Request) -> Response:
        if not await self._upstream.is_ready():
            state = "not ready" if self._upstream.url else self._upstream.state
            raise ShutError(state)
        return Response()

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """Yields the whole body of JSON; raises `ApiError`."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, "the body must be JSON: send the header Content-Type: application/json")
        coding = request.headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity"):
            raise ApiError(400, "send the body uncompressed, without a Content-Encoding")
        said = request.headers.get("content-length", "0")
        size = int(said) if said.isdecimal() and len(said) < 20 else 0
        try:
            async with self._bodies.read(request.stream(), size) as body:
                yield body
        except BodyError as error:
            raise ApiError(error.status, str(error)) from None

    def _tenant(self, request: Request) -> str:
        return self._keys.tenant(request.headers.get("authorization"))

    def _check_model(self, name: str) -> None:
        if name not in (*self._names, self._upstream.model_name):
            known = " and ".join(map(repr, self._names))
            message = f"this server has no model {name[:80]!r}; it has {known}"
            raise ApiError(404, message, "model", "model_not_found")

    @property
    def _names(self) -> tuple[str, ...]:
        return self._texts.card.names or (self._upstream.model_name,)

    def _card(self, name: str) -> dict[str, Any]:
        shared = {"object": "model", "created": self._began, "owned_by": "trtspec"}
        card = {"id": name, **shared, "root": self._names[0]}
        longest = self._texts.card.max_model_len
        return {**card, "max_model_len": longest} if longest else card

    @staticmethod
    def _name(request: Request, asked: model_request.ModelRequest) -> str:
        name = request_id(request.scope)
        for inputs in asked.inputs:
            inputs[ID] = name
        return name

    async def _exchange(
        self, request: Request, route: Chat | Completions, asked: model_request.ModelRequest, said: Any
    ) -> Exchange:
        name, options = self._name(request, asked), said.stream_options
        if options and options.include_usage and options.continuous_usage_stats:
            asked = await asyncio.to_thread(model_request.counted, asked, self._tokenizer(None))
        answer = ResponseBuilder(route, asked, said.model, self._texts.tokenizer, name)
        return Exchange(self._upstream, asked, answer, self._places)


async def _read(body: bytes, kind: type[Any]) -> Any:
    return (
        await asyncio.to_thread(parse_body, body, kind) if len(body) > SHORT_BODY else parse_body(body, kind)
    )


def _tokenized(tokenizer: Tokenizer, said: TokenizeBody, prompt: str, longest: int | None) -> Response:
    ids = tokenizer.encode(prompt, said.has_special_tokens)
    names = [tokenizer.name_of(token_id) for token_id in ids] if said.return_token_strs else None
    found = {"count": len(ids), "max_model_len": longest, "tokens": ids, "token_strs": names}
    # The json of the standard library would hold up the loop's thread ten times as long.
    return Response(orjson.dumps(found), media_type="application/json")


def _detokenized(tokenizer: Tokenizer, said: DetokenizeBody) -> Response:
    text = tokenizer.detokenizer(skip_special_tokens=False)
    return JSONResponse({"prompt": "".join(map(text.push, said.tokens)) + text.flush()})


def _response(error: ApiError, scope: Scope) -> Response:
    response = Response(error.body(), error.status, error.headers, "application/json")
    response.raw_headers += id_headers(scope)
    return response


class _Errors:
    """Answers and counts requests that never reach the model."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals

    async def metrics(self, _: Request) -> Response:
        return Response(self._refusals.text(), media_type="text/plain; version=0.0.4")

    async def api(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return self._refused(request, error)

    async def http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path[:80]}: {error.detail}"
        if error.status_code == 404:
            message += _ROUTES
        response = self._refused(request, ApiError(error.status_code, message))
        response.headers.update(error.headers or {})
        return response

    def _refused(self, request: Request, error: ApiError) -> Response:
        if request.method == "POST":
            self._refusals.add(_REFUSALS.get(error.status, Refusal.INVALID_REQUEST))
        return _response(error, request.scope)


async def _no_responses(_: Request) -> Response:
    raise ApiError(404, "this server stores no responses; send the conversation as the input of a new one")


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


async def _defect(request: Request, _: Exception) -> Response:
    return _response(ApiError(500, "internal error; the server's log has the trace"), request.scope)
