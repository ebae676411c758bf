"""A client for notebooks and scripts: it sends a prompt to a server of any API, and returns the
completion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from trtspec.base.errors import ServerError, UnavailableError
from trtspec.client.endpoint import (
    AskError,
    ChatMessage,
    Endpoint,
    EndpointRequest,
    Hear,
    TimedAnswer,
    unheard,
)
from trtspec.client.finding import (
    GRPC_SCHEME,
    StreamingEndpoint,
    find_any,
    metrics_beside,
    other_port,
    spoken_by,
)
from trtspec.client.local_server import LocalServer, is_starting, one_address
from trtspec.client.scrape import Growth, Scrape, parse, read
from trtspec.gateway.ports import GRPC, LOOPBACK, OPENAI, listens

if TYPE_CHECKING:
    from trtspec.client.grpc import GrpcEndpoint

API = f"http://{LOOPBACK}:{OPENAI}/v1"
"""OpenAI's API of what `trtspec deploy` serves on this machine."""

_T = TypeVar("_T")
_LOOK_S = 0.2


class Client:
    """Asks one model of a server for completions.

    `url` is any server's address: its API is found by asking (OpenAI's, Triton's HTTP, Triton's gRPC).
    Without it the client asks what `trtspec deploy` serves on this machine. `model_name` is `speculative_llm`
    or, with OpenAI's API, the only model if it is left out. `api_key` is for OpenAI's API. It waits `wait_s`
    seconds for a server that is not ready; unless that is 0, one that deploy starts here is waited for until
    it is ready. An answer must be complete after `timeout_s`.

    The client keeps no connection, so there is nothing to close.
    """

    def __init__(
        self,
        url: str | None = None,
        model_name: str | None = None,
        *,
        api_key: str | None = None,
        wait_s: float = 0.0,
        timeout_s: float = 600.0,
    ) -> None:
        self._url, self._model_name, self._key = url, model_name, api_key
        self._wait_s, self._timeout_s = wait_s, timeout_s

    def __repr__(self) -> str:
        return f"<Client of {self._url or 'the server that runs here'}>"

    def generate(
        self,
        prompt: str | Sequence[ChatMessage],
        *,
        max_tokens: int = 128,
        num_draft_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        stream: bool = True,
        hear: Hear = unheard,
    ) -> TimedAnswer:
        """Returns the completion of a prompt; `hear` is called with each piece of its text as it comes.

        A prompt of messages is a conversation, which OpenAI's API puts through the model's chat template.
        `num_draft_tokens` is K of each round: 0 is the target alone, None is the server's choice. Without a
        `temperature` the text is greedy. The text ends before a string of `stop`. Without `stream` Triton
        sends the text whole. Raises `ServerError` if the server refuses the request, and
        `UnavailableError` if nobody answers, for an invalid URL or an unknown model.
        """
        request = EndpointRequest(
            (ChatMessage("user", prompt),) if isinstance(prompt, str) else tuple(prompt),
            max_tokens,
            num_draft_tokens,
            temperature or 0.0,
            seed,
            top_k=top_k,
            top_p=top_p,
            stop=tuple(stop),
            stream=stream,
        )
        chat = not isinstance(prompt, str)
        url = self._url or _outcome(self._found(needs_api=chat or bool(self._key)))
        return _outcome(self._ask(url, request, hear, chat=chat))

    async def _found(self, *, needs_api: bool) -> str:
        """Returns the address of this machine's server: the one that deploy has recorded, or else one on the
        usual ports.

        Raises `ServerError` if nobody listens, and
        `UnavailableError` if deploy has recorded several. Triton's gRPC has no keys and no chats.
        """

        def address(server: LocalServer) -> str | None:
            grpc = f"{GRPC_SCHEME}://{server.grpc}" if server.grpc else None
            return server.openai if needs_api else grpc or server.openai

        deadline = time.monotonic() + self._wait_s
        while True:
            if url := one_address(address, lambda one: self._model_name in (None, one.model)):
                return url
            if not needs_api and listens(LOOPBACK, GRPC):
                return f"{GRPC_SCHEME}://{LOOPBACK}:{GRPC}"
            is_over = time.monotonic() >= deadline
            if listens(LOOPBACK, OPENAI) or (needs_api and is_over):
                return API
            if is_over:
                problem = f"nobody listens on port {GRPC}, Triton's gRPC, or {OPENAI}, OpenAI's API"
                repair = "trtspec deploy RECIPE starts a server; --url names another"
                raise ServerError(LOOPBACK, problem, repair)
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, url: str, request: EndpointRequest, hear: Hear, *, chat: bool) -> TimedAnswer:
        """Asks an API; raises `ServerError` for its errors, and for what it lacks."""
        endpoint = await self._endpoint(url, chat=chat)
        try:
            spoken = spoken_by(endpoint)
            if chat and spoken != "openai":
                # Triton's own API puts nothing through a chat template.
                raise await other_port(endpoint.url, spoken, "openai")
            if self._key and spoken == "grpc":
                repair = "leave it out, or name OpenAI's API"
                raise ServerError(endpoint.url, "Triton's gRPC asks for no API key", repair)
            if request.num_draft_tokens is not None and not endpoint.plain_per_request:
                problem = "takes K at its start only, not in a request"
                repair = "leave --num-draft-tokens out; trtspec deploy RECIPE --plain serves the target alone"
                raise ServerError(endpoint.url, problem, repair)
            before = None if endpoint.plain_per_request else await _looked(endpoint)
            answer = await endpoint.ask(request, hear)
            after = await _looked(endpoint) if before and answer.drafts is None else None
            if before and after:
                answer.drafts = Growth(before, after).drafts
            return answer
        except AskError as error:
            if error.kind == "timed_out":
                raise _overdue(endpoint.url, self._timeout_s) from error
            raise ServerError(endpoint.url, error.problem) from error
        finally:
            await endpoint.close()

    async def _endpoint(self, url: str, *, chat: bool) -> StreamingEndpoint | GrpcEndpoint:
        """Returns the way to ask the server at a URL; waits for the server if it must."""
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                return await find_any(
                    url, self._model_name, chat=chat, timeout_s=self._timeout_s, key=self._key
                )
            except UnavailableError:
                # One that deploy starts here is waited for as long as its start may take.
                if time.monotonic() > deadline and not (self._wait_s and is_starting(url)):
                    raise
                await asyncio.sleep(_LOOK_S)


def _outcome(work: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine and returns its result, even if a loop runs in this thread, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _looked(endpoint: Endpoint) -> Scrape | None:
    """Returns the metrics beside an API, as vLLM has them; None if there are none."""
    with suppress(UnavailableError):
        if url := await metrics_beside(endpoint):
            return parse(await asyncio.to_thread(read, url), time.monotonic())
    return None


def _overdue(url: str, seconds: float) -> ServerError:
    """Returns the error for an answer that is not complete after so many seconds."""
    problem = f"the answer is not complete after {seconds:g} s, so it is given up"
    return ServerError(url, problem, "wait longer with --timeout, or ask for less with --max-tokens")
