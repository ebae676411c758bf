"""The guides of a model: grammars that are compiled beside the engines, within bounds, and cached."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeVar

from trtspec.serving.awaiting import within
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.coordinator import CompletionCall, Coordinator, Deltas, Feature, Stream
from trtspec.serving.errors import Busy, EngineLoadError, GuideError, RequestError, TimedOut
from trtspec.serving.executor import Guide, GuideType
from trtspec.serving.guides.bounds import check
from trtspec.serving.guides.compiler import Grammar, GuideCompiler, is_installed
from trtspec.serving.thread_pool import ThreadPool

T = TypeVar("T")
Key = tuple[GuideType, str]

COMPILE_S = 10.0
"""The largest time to compile a guide, in seconds."""
MAX_BYTES = 256 * 2**20
"""The largest size of all cached grammars together."""
MAX_REFUSED = 256
"""The largest number of refused guides that are remembered."""
_THREADS = 2
_NICENESS = 10


class Guides:
    """Compiles guides into grammars over `vocab_size` tokens, whose bytes `vocabulary` returns.

    All methods are called on the thread of one asyncio loop at a time. Compilation runs on threads of low
    priority. A guide that takes longer than `COMPILE_S` is refused. Its thread cannot be stopped, so after
    `2 * _THREADS` such guides the others wait until one of them is done.
    """

    def __init__(self, vocabulary: Callable[[int], list[bytes]], vocab_size: int) -> None:
        self._vocabulary, self._vocab_size = vocabulary, vocab_size
        self._compiler: GuideCompiler | None = None
        self._threads = ThreadPool(_THREADS, "guides")
        self._grammars: OrderedDict[Key, Grammar] = OrderedDict()
        self._refused: OrderedDict[Key, str] = OrderedDict()
        self._size = 0
        self._tasks: dict[Key | None, asyncio.Task[Any]] = {}

    @property
    def types(self) -> frozenset[GuideType]:
        """The types of guides that can be compiled: all if xgrammar is installed, else none."""
        return frozenset(GuideType) if is_installed() else frozenset()

    def find(self, guide: Guide) -> Grammar | None:
        """Returns the cached grammar of a guide; None if there is none, or a problem with it was found."""
        key = _key(guide)
        grammar = self._grammars.get(key)
        if grammar is None:
            return None
        if grammar.problem is not None:
            self._size -= self._grammars.pop(key).size
            self._refuse(key, grammar.problem)
            return None
        self._grammars.move_to_end(key)
        return grammar

    async def grammar(self, guide: Guide) -> Grammar:
        """Returns the grammar of a guide; raises `GuideError`, or `Busy` if no compilation began."""
        key = _key(guide)
        if (found := self.find(guide)) is not None:
            return found
        if key in self._refused:
            raise GuideError(self._refused[key])
        check(guide)
        if self._compiler is None:
            self._compiler = await self._once(None, self._load)
        return await self._once(key, partial(self._compile, key, guide))

    def close(self) -> None:
        """Drops the guides that wait for their compilation."""
        self._threads.close()

    async def _once(self, key: Key | None, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Awaits a task of `work` that concurrent callers share. Cancelling a caller does not cancel it."""
        if (task := self._tasks.get(key)) is None or task.done():
            self._tasks[key] = task = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(partial(self._forget, key))
        result: T = await asyncio.shield(task)
        return result

    def _forget(self, key: Key | None, task: asyncio.Task[Any]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled():
            task.exception()  # asyncio would log an error that no caller retrieved.

    async def _load(self) -> GuideCompiler:
        """Makes the compiler at the first guide: the import of xgrammar takes seconds."""
        try:
            return await self._on_thread(lambda: GuideCompiler(self._vocabulary(self._vocab_size)), None)
        except ImportError as error:
            raise EngineLoadError("xgrammar", f"cannot be imported ({error})") from error

    async def _compile(self, key: Key, guide: Guide) -> Grammar:
        assert self._compiler is not None
        try:
            grammar = await self._on_thread(partial(self._compiler.compile, guide), COMPILE_S)
        except GuideError as error:
            self._refuse(key, str(error))
            raise
        self._grammars[key] = grammar
        self._size += grammar.size
        while self._size > MAX_BYTES and len(self._grammars) > 1:
            self._size -= self._grammars.popitem(last=False)[1].size
        return grammar

    def _refuse(self, key: Key, problem: str) -> None:
        self._refused[key] = problem
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)

    async def _on_thread(self, work: Callable[[], T], timeout_s: float | None) -> T:
        """Returns the result of the work. It waits `timeout_s` for a thread at most, and then for it."""
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[None] = loop.create_future()
        done: asyncio.Future[T] = loop.create_future()
        call = self._threads.submit(partial(_run, work, loop, begun, done))
        try:
            await within(timeout_s, begun)
            return await within(timeout_s, done)
        except asyncio.TimeoutError:
            # If it has only just begun, the guide is not to blame either.
            if self._threads.give_up(call) or begun.cancelled():
                raise Busy("other grammars are being compiled") from None
            raise GuideError(f"xgrammar takes longer than {COMPILE_S:g} s to compile it") from None


def _key(guide: Guide) -> Key:
    return guide.guide_type, guide.guide


def _run(
    work: Callable[[], T],
    loop: asyncio.AbstractEventLoop,
    begun: asyncio.Future[None],
    done: asyncio.Future[T],
) -> None:
    """Settles `begun`, and `done` with what `work` returns or raises; called on a thread of the pool."""
    # Linux counts this by thread.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    with suppress(RuntimeError):  # The loop is closed.
        loop.call_soon_threadsafe(_settle, begun, None, None)
    settle: Callable[[], None]
    try:
        settle = partial(_settle, done, work(), None)
    except Exception as error:
        settle = partial(_settle, done, None, error)
    with suppress(RuntimeError):  # The loop is closed.
        loop.call_soon_threadsafe(settle)


def _settle(done: asyncio.Future[T], result: Any, error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


ALLOWED_GUIDES = {
    GuideType.JSON: "left out for the type json",
    GuideType.JSON_SCHEMA: "a JSON schema that xgrammar can read",
    GuideType.REGEX: "a regular expression that xgrammar can read",
    GuideType.EBNF_GRAMMAR: "a grammar in EBNF with a rule named root",
    GuideType.STRUCTURAL_TAG: "a structural tag of xgrammar, in JSON",
}


class GuidedRequests(Feature):
    """Refuses a guide that cannot be followed, before anything runs if it has `guides`."""

    def __init__(self, guides: Guides | None) -> None:
        self._guides = guides

    def concerns(self, request: CompletionRequest) -> bool:
        return request.guide is not None

    async def around(self, coordinator: Coordinator, stream: Stream, call: CompletionCall) -> Deltas:
        assert call.request.guide is not None
        try:
            if self._guides is not None:
                with coordinator.present():
                    await self._compile(self._guides, coordinator, call)
            async with aclosing(stream(call)) as deltas:
                async for delta in deltas:
                    yield delta
        except GuideError as error:
            allowed = ALLOWED_GUIDES[call.request.guide.guide_type]
            raise RequestError("guide", f"refused ({error})", allowed) from None

    async def _compile(self, guides: Guides, coordinator: Coordinator, call: CompletionCall) -> None:
        state = await coordinator.begin(call)
        assert state.guide is not None
        left_s = max(call.deadline - asyncio.get_running_loop().time(), 0.0)
        try:
            await within(left_s, guides.grammar(state.guide))
        except asyncio.TimeoutError:
            raise TimedOut(f"at token 0 of {state.max_tokens}") from None
