"""Engines for the coordinator's tests: languages made up on the spot, and an engine that answers at once."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.fakes.scripted_executor import NextToken, ScriptedExecutor, agreeing
from trtspec.serving.executor import FinishReason, KvReuse, Limits, Listener, Request, Response

TARGET = Limits(max_batch_size=256, max_input_len=400, max_seq_len=400, max_draft_len=8, vocab_size=300)
DRAFT = replace(TARGET, max_draft_len=0)

Run = Callable[[Any], Any]


def chatter(words: Sequence[int], seed: int) -> NextToken:
    """A language of these tokens only; the last two tokens and the length decide the next one."""

    def next_token(sequence: Sequence[int]) -> int:
        return words[zlib.crc32(repr((seed, len(sequence), list(sequence[-2:]))).encode()) % len(words)]

    return next_token


def by_prompt(languages: dict[int, NextToken]) -> NextToken:
    """Speaks the language that the first token names, so that one engine serves many requests."""
    return lambda sequence: languages[sequence[0]](sequence)


def drafting_for(target: ScriptedExecutor, agreement: float, **options: Any) -> ScriptedExecutor:
    return ScriptedExecutor(DRAFT, agreeing(target.next_token, DRAFT.vocab_size, agreement), **options)


class OneShot:
    """An executor that answers each request with one response, soon."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.kv_tokens: int | None = None
        self.failure: str | None = None
        self.progress = 0
        self.requests: list[Request] = []

    def say(self, request: Request) -> tuple[list[int], FinishReason]:
        raise NotImplementedError

    def take_kv_use(self) -> float | None:
        return None

    @property
    def kv_reuse(self) -> KvReuse | None:
        return None

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        self.requests.append(replace(request, input_token_ids=tuple(request.input_token_ids)))
        token_ids, reason = self.say(request)
        response = Response(len(self.requests), token_ids, True, reason)
        asyncio.get_running_loop().call_soon(listener, response)
        return response.request_id

    def cancel_request(self, request_id: int) -> None: ...

    def shutdown(self) -> None: ...
