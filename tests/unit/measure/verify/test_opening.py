"""Servers of OpenAI's API whose events have another form than vLLM's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from trtspec.base.errors import UnavailableError
from trtspec.measure.verify.opening import ServerAddress, deployed

TOKEN = {"tokens": ["token_id:5"], "top_logprobs": [{"token_id:5": -0.1}]}


def event(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"text": "a", "finish_reason": "length", **choice}]}


def opened(said: dict[str, Any], most: int = 5) -> tuple[str, int]:
    """Opens a server that answers with an event; returns its name and its number of log-probabilities.

    It refuses requests for more than `most` likeliest tokens.
    """

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "owned_by": "somebody"}]})

    async def complete(request: web.Request) -> web.StreamResponse:
        if (await request.json())["logprobs"] > most:
            return web.json_response({"error": {"message": "logprobs is too large"}}, status=400)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(f"data: {json.dumps(said)}\n\ndata: [DONE]\n\n".encode())
        return response

    async def main() -> tuple[str, int]:
        app = web.Application()
        app.add_routes([web.get("/v1/models", models), web.post("/v1/completions", complete)])
        async with TestServer(app) as server:
            side, _ = await deployed(ServerAddress(str(server.make_url("/v1")), None), ())
            await side.close()
            return side.name, side.top_log_probs

    return asyncio.run(main())


@pytest.mark.parametrize(
    "said",
    [
        event(logprobs={"content": [{"id": 5, "logprob": -0.1}]}),  # llama.cpp has the form of chats here too
        event(logprobs={"tokens": None, "top_logprobs": None}),
        event(logprobs={**TOKEN, "top_logprobs": [None]}),
        event(logprobs={**TOKEN, "tokens": ["Paris"]}),
        [event()],
    ],
    ids=["content", "null", "null rows", "words", "list"],
)
def test_events_of_another_form_are_tokens_that_are_not_reported(said: dict[str, Any]) -> None:
    with pytest.raises(UnavailableError, match="does not report its tokens"):
        opened(said)


def test_an_error_that_is_null_is_none() -> None:
    assert opened({**event(logprobs=TOKEN), "error": None})[1] == 5


def test_token_ids_without_log_probabilities_are_enough() -> None:
    assert opened(event(token_ids=[5], logprobs=None))[1] == 0


def test_an_engine_without_likeliest_tokens_is_asked_for_those_of_its_text() -> None:
    assert opened(event(logprobs={**TOKEN, "top_logprobs": None}), most=0)[1] == 0


def test_a_server_that_refuses_any_log_probabilities_is_named_with_its_own_words() -> None:
    with pytest.raises(UnavailableError, match=r"does not report its tokens.*logprobs is too large"):
        opened(event(), most=-1)
