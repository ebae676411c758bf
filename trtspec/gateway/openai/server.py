"""Runs the API's server: uvicorn with the application, on a socket that already listens."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import uvicorn
import uvloop

from trtspec.base.process_limits import allow_connections, give_back_large_blocks
from trtspec.gateway.client_bounds import MOST_CONNECTIONS
from trtspec.gateway.openai.app import ModelText, make_app
from trtspec.gateway.openai.chat_template import ChatTemplate, Renderer
from trtspec.gateway.openai.connection import Connection
from trtspec.gateway.openai.control import follow
from trtspec.gateway.openai.keys import Keys
from trtspec.gateway.openai.sampling_defaults import read_defaults
from trtspec.gateway.openai.settings import ApiSettings
from trtspec.gateway.openai.upstream import Upstream
from trtspec.gateway.refusals import Refusal, Refusals
from trtspec.models.tokenizer import BROKEN
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton.agreement import NAMING

_LAST_RESPONSES_S = 5


def load(settings: ApiSettings) -> tuple[ModelText, Keys]:
    """Reads the files that the settings name; raises OSError, ValueError and `TokenizerError`.

    With an unreadable chat template it answers no chats, but serves everything else.
    """
    texts, folder = ModelText(card=settings.card), settings.tokenizer
    if folder is not None:
        sampling = read_defaults(folder) if settings.card.has_own_sampling else {}
        texts = replace(texts, tokenizer=Tokenizer.load(folder), sampling=sampling)
        try:
            texts = replace(texts, template=ChatTemplate.load(folder))
        except BROKEN as error:
            texts = replace(texts, problem=f"; its chat template cannot be read: {error}")
    return texts, Keys.load(settings.keys) if settings.keys else Keys([])


def serve(listener: socket.socket, settings: ApiSettings, texts: ModelText, keys: Keys) -> None:
    """Serves until SIGINT or SIGTERM, or with no `url` in the settings until standard input ends."""
    Connection.most_connections = allow_connections(MOST_CONNECTIONS)
    give_back_large_blocks()
    uvloop.run(_serve(listener, settings, texts, keys))


async def _serve(listener: socket.socket, settings: ApiSettings, texts: ModelText, keys: Keys) -> None:
    refusals = Refusals("openai", settings.model_name)
    upstream = Upstream(settings.model_name, refusals, os.environ.get(NAMING, ""))
    renderer = Renderer(texts.template) if texts.template else None
    config = uvicorn.Config(
        make_app(upstream, texts, renderer, keys, refusals, settings.max_requests, settings.origins),
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http=counting(refusals),
        timeout_graceful_shutdown=_LAST_RESPONSES_S,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.end)
    following = None
    if settings.url is None:
        following = loop.create_task(follow(upstream, server.end))
    else:
        upstream.url = settings.url.rstrip("/")
    try:
        if renderer:
            await renderer.start()
        await server.serve(sockets=[listener])
    finally:
        if renderer:
            await renderer.close()
        if following:
            following.cancel()
        upstream.close()


def counting(refusals: Refusals) -> type[Connection]:
    """Returns connections that count what they refuse themselves, which the application does not see."""

    class Counting(Connection):
        def refused(self, status: int) -> None:
            refusals.add(Refusal.TOO_MANY_CONNECTIONS if status == 503 else Refusal.INVALID_REQUEST)

    return Counting


class _Server(uvicorn.Server):
    """Uvicorn, which leaves signals alone."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def end(self) -> None:
        """Ends the server, once what runs has ended or some seconds have passed."""
        self.should_exit = True
