"""Defines the routes of the API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, TypeVar

import orjson
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from trtspec.gateway.bodies import Bodies, BodyError
from trtspec.gateway.client_bounds import SHORT_BODY
from trtspec.gateway.openai import exchange
from trtspec.gateway.openai import job as jobs
from trtspec.gateway.openai.answers import Chat, Completions, FunctionChat, ResponseBuilder, with_tools
from trtspec.gateway.openai.chat_template import ChatTemplate, Renderer
from trtspec.gateway.openai.errors import ApiError, ShutError
from trtspec.gateway.openai.exchange import Places
from trtspec.gateway.openai.keys import Keys
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
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton.agreement import ID

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
        exchange.name_request(scope)
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
        said, job = await self._chat_job(request, ChatRequest, with_tools)
        if said.functions and job.guided_by == "tool_choice":
            job = replace(job, guided_by="function_call")
        return await self._exchange(request, FunctionChat() if said.functions else Chat(), job, said)

    async def responses(self, request: Request) -> Response:
        said, job = await self._chat_job(request, ResponsesBody, as_chat)
        if job.guided_by == "response_format":
            job = replace(job, guided_by="text.format")
        name = self._name(request, job)
        return exchange.Exchange(self._upstream, job, ItemsBuilder(said, job, name), self._places)

    async def _chat_job(
        self, request: Request, kind: type[B], as_request: Callable[[B], ChatRequest]
    ) -> tuple[B, jobs.ModelRequest]:
        """Returns the body of a chat, and its job."""
        tenant = self._tenant(request)
        async with self._body(request) as body:
            said: B = await _read(body, kind)
            self._check_model(said.model)
            wanted = with_defaults(as_request(said), self._texts.sampling)
            # A chat that waits for the template takes as much memory as its body.
            template, prompt = await self._prompt(request, wanted)
        parser = self._texts.card.reasoning_parser
        return said, jobs.chat(wanted, prompt, template, tenant, self._texts.tokenizer, parser)

    async def _prompt(self, request: Request, wanted: ChatRequest) -> tuple[str, str]:
        renderer = self._renderer
        if renderer is None:
            raise ApiError(400, _NO_TEMPLATE + self._texts.problem, "messages")
        tools = jobs.template_tools(wanted)
        template = renderer.template.of(tools)
        if tools and "tools" not in template:
            raise ApiError(400, "this model's chat template takes no tools", "tools")
        values = jobs.template_values(wanted, template)
        rendering = renderer.render(jobs.template_messages(wanted), tools, values)
        return template, jobs.continued(await exchange.unless_left(request.receive, rendering), wanted)

    async def completions(self, request: Request) -> Response:
        tenant = self._tenant(request)
        async with self._body(request) as body:
            said = await _read(body, CompletionBody)
        self._check_model(said.model)
        wanted = with_defaults(said, self._texts.sampling)
        job = jobs.completion(wanted, tenant, self._texts.tokenizer)
        return await self._exchange(request, Completions(), job, said)

    async def tokenize(self, request: Request) -> Response:
        self._tenant(request)
        async with self._body(request) as body:
            said = await _read(body, TokenizeBody)
            tokenizer = self._tokenizer(said.model)
            prompt = said.prompt
            if prompt is None:
                _, prompt = await self._prompt(request, with_tools(said.chat))
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
    def _name(request: Request, job: jobs.ModelRequest) -> str:
        name = exchange.request_id(request.scope)
        for inputs in job.inputs:
            inputs[ID] = name
        return name

    async def _exchange(
        self, request: Request, route: Chat | Completions, job: jobs.ModelRequest, said: Any
    ) -> exchange.Exchange:
        name, options = self._name(request, job), said.stream_options
        if options and options.include_usage and options.continuous_usage_stats:
            job = await asyncio.to_thread(jobs.counted, job, self._tokenizer(None))
        answer = ResponseBuilder(route, job, said.model, self._texts.tokenizer, name)
        return exchange.Exchange(self._upstream, job, answer, self._places)


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
    response.raw_headers += exchange.id_headers(scope)
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
