"""The application without a server: what clients hold while they wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from starlette.types import ASGIApp

from trtspec.gateway.openai import app as routes
from trtspec.gateway.openai.app import ModelText, make_app
from trtspec.gateway.openai.chat_template import ChatTemplate, Renderer
from trtspec.gateway.openai.keys import Keys
from trtspec.gateway.openai.upstream import Upstream
from trtspec.gateway.refusals import Refusals
from trtspec.serving.tokenizer import Detokenizer, Tokenizer

TINY = Path(__file__).parents[4] / "recipes" / "tiny" / "target"
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 1000}]}).encode()


class Client:
    """One request, whose body comes in pieces, and `status` is that of the answer; `leave` hangs up."""

    def __init__(self, app: ASGIApp, path: str, body: bytes) -> None:
        self.status, self._body, self._leaving = 0, body, asyncio.Event()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        self.asking = asyncio.ensure_future(app(scope, self._receive, self._send))

    def leave(self) -> None:
        self._leaving.set()

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            body, self._body = self._body[:100], self._body[100:]
            return {"type": "http.request", "body": body, "more_body": bool(self._body)}
        await self._leaving.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)


class Stuck(Renderer):
    """Renders nothing, and counts who waits for it."""

    def __init__(self) -> None:
        super().__init__(ChatTemplate("", {}))
        self.waiting = 0

    async def render(self, *_: Any) -> str:
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1
        return ""


def test_who_waits_for_the_template_holds_the_body_until_he_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of one body there is place.
    monkeypatch.setattr(routes, "_MOST_HELD", len(CHAT))

    async def run() -> None:
        renderer, refusals = Stuck(), Refusals("openai", "m")
        upstream = Upstream("m", refusals)
        app = make_app(upstream, ModelText(), renderer, Keys([]), refusals, max_requests=9)
        first = Client(app, "/v1/chat/completions", CHAT)
        while not renderer.waiting:
            await asyncio.sleep(0)
        second = Client(app, "/v1/chat/completions", CHAT)
        await asyncio.wait_for(second.asking, 120)
        assert second.status == 503

        first.leave()
        await asyncio.wait_for(first.asking, 120)
        assert renderer.waiting == 0
        third = Client(app, "/v1/chat/completions", CHAT)
        while not renderer.waiting:
            await asyncio.sleep(0)
        third.leave()
        await asyncio.wait_for(third.asking, 120)

    asyncio.run(asyncio.wait_for(run(), 300))


class Slow(Tokenizer):
    """Says nothing of any token before it may."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.is_asked, self.may_say = Event(), Event()

    def _wait(self) -> None:
        self.is_asked.set()
        assert self.may_say.wait(120)

    def name_of(self, token_id: int) -> str:
        self._wait()
        return super().name_of(token_id)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        self._wait()
        return super().detokenizer(skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/tokenize", {"prompt": "a", "return_token_strs": True}), ("/detokenize", {"tokens": [1, 2, 3]})],
)
def test_tokens_are_told_beside_all_else_and_their_body_is_held(
    path: str, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(asked).encode()
    monkeypatch.setattr(routes, "_MOST_HELD", len(body))
    tokenizer = Slow.load(TINY)
    assert isinstance(tokenizer, Slow)

    async def run() -> None:
        refusals = Refusals("openai", "m")
        texts = ModelText(tokenizer=tokenizer)
        app = make_app(Upstream("m", refusals), texts, None, Keys([]), refusals, max_requests=9)
        first = Client(app, path, body)
        while not tokenizer.is_asked.is_set():
            await asyncio.sleep(0.01)
        second = Client(app, path, body)
        await asyncio.wait_for(second.asking, 120)
        tokenizer.may_say.set()
        await asyncio.wait_for(first.asking, 120)
        assert (first.status, second.status) == (200, 503)

    asyncio.run(asyncio.wait_for(run(), 300))


class Silent(Upstream):
    """Answers nothing, and counts what it is asked."""

    asked = 0

    async def ask(self, *_: Any) -> AsyncGenerator[list[dict[str, Any]], None]:
        self.asked += 1
        await asyncio.Event().wait()
        yield []


def test_each_prompt_takes_a_place_until_its_client_leaves() -> None:
    async def run() -> None:
        refusals = Refusals("openai", "m")
        upstream = Silent("m", refusals)
        app = make_app(upstream, ModelText(), None, Keys([]), refusals, max_requests=4)

        def ask(number: int) -> Client:
            body = json.dumps({"model": "m", "prompt": ["a"] * number}).encode()
            return Client(app, "/v1/completions", body)

        async def come_to(number: int) -> None:
            while upstream.asked < number:
                await asyncio.sleep(0)

        three = ask(3)
        await come_to(3)
        two = ask(2)
        await asyncio.wait_for(two.asking, 120)
        one = ask(1)
        await come_to(4)
        other = ask(1)
        await asyncio.wait_for(other.asking, 120)
        assert (two.status, other.status) == (429, 429)
        assert 'reason="too_many_requests"} 2' in refusals.text()

        for client in (three, one):
            client.leave()
            await asyncio.wait_for(client.asking, 120)
        four = ask(4)
        await come_to(8)
        four.leave()
        await asyncio.wait_for(four.asking, 120)

        # There will never be room for so many, and who tries again would try for ever.
        five = ask(5)
        await asyncio.wait_for(five.asking, 120)
        assert five.status == 400

    asyncio.run(asyncio.wait_for(run(), 300))
