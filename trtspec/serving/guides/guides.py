"""The guides of a model: grammars that are compiled beside the engines, within bounds, and cached.

A guide is refused before xgrammar sees it if its compilation might take minutes or gigabytes, or if xgrammar
would ignore a part of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeVar

from trtspec.serving.awaiting import within
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.coordinator import CompletionCall, Coordinator, Deltas, Feature, Stream
from trtspec.serving.errors import Busy, EngineLoadError, GuideError, RequestError, TimedOut
from trtspec.serving.executor import Guide, GuideType
from trtspec.serving.guides.compiler import Grammar, GuideCompiler, is_installed
from trtspec.serving.thread_pool import ThreadPool

MAX_CHARACTERS = 32_768
MAX_DEPTH = 64
"""The largest nesting depth of braces and brackets: xgrammar's time grows with its cube."""
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"
# xgrammar silently ignores these keywords (`cpp/json_schema_converter.cc`), and takes a `$ref` to another
# document, or `allOf` of several schemas, for any JSON. A client that sends such a schema would get answers
# that violate it. Keywords that only narrow a value (`multipleOf`, `uniqueItems`, `contains`) are accepted.
_IGNORED = (
    *("not", "if", "dependentRequired", "dependentSchemas", "dependencies"),
    *("$dynamicRef", "$recursiveRef"),
)
# Of a schema with one of these it follows only that one, and of two of them only one.
_ALONE = ("$ref", "anyOf", "oneOf", "allOf")
_SHAPES = (
    *("properties", "patternProperties", "additionalProperties", "required"),
    *("items", "prefixItems", "const", "enum"),
)
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = (
    *("items", "additionalItems", "unevaluatedItems", "contains"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames"),
)
_OF_TAGS = ("json_schema", "schema")
_TYPES = {"dict": "object", "list": "array", "str": "string", "bool": "boolean", "NoneType": "null"}
# xgrammar takes an unknown escape for its letter, and anchors inside, or a schema's lookaheads, for nothing.
_ESCAPE = re.compile(
    r"\\(?:[\WabefnrtvdDsSwW0_]|x[\da-fA-F]|u\{?[\da-fA-F]|U[\da-fA-F]{8}|c[a-zA-Z]|(.))", re.DOTALL
)
_CLASS = re.compile(r"\[\^?[^\]]*\]")
_IGNORED_INSIDE = re.compile(r"\(\?<?[=!]|(?<=[^(|^:])\^|\$(?=[^)|$])")
# A client sees 80 characters of a problem.
_LONGEST_REFERENCE = 32


def check(guide: Guide) -> None:
    """Raises `GuideError` for a guide that is missing, too long, too deep or malformed JSON.

    It also raises it for a JSON schema with a part that xgrammar ignores.
    """
    text = guide.guide
    if guide.guide_type is GuideType.JSON:
        if text:
            raise GuideError("json means any JSON and takes no guide; use the type json_schema for a schema")
        return
    if not text:
        raise GuideError(f"a guide of the type {guide.guide_type.value} is empty")
    if len(text) > MAX_CHARACTERS:
        raise GuideError(f"it has {len(text)} characters, more than {MAX_CHARACTERS}")
    check_content = _JSON.get(guide.guide_type)
    if check_content is None:
        _check_depth(_depth(text))
        if guide.guide_type is GuideType.REGEX:
            _check_regex(text)
        return
    try:
        content = json.loads(text)
    except RecursionError:
        raise GuideError(_TOO_DEEP) from None
    except ValueError as error:
        raise GuideError(f"it is not JSON: {error}") from None
    _check_depth(_json_depth(content))
    check_content(content)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise GuideError(_TOO_DEEP)


def _json_depth(content: Any) -> int:
    """Returns the nesting depth of objects and lists."""
    layer, depth = [content], 0
    while layer := [value for value in layer if isinstance(value, (dict, list))]:
        depth += 1
        layer = [item for value in layer for item in (value.values() if isinstance(value, dict) else value)]
    return depth


def _depth(text: str) -> int:
    """Returns the nesting depth of groups. Brackets in quotes or classes count too."""
    depth = deepest = 0
    escaped = False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character in "({[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")}]":
            depth = max(depth - 1, 0)
    return deepest


def _check_regex(text: str) -> None:
    """Raises `GuideError` for a part that xgrammar ignores; it reports other problems itself."""
    ignored = [found[0] for found in _ESCAPE.finditer(text) if found[1]]
    ignored += _IGNORED_INSIDE.findall(_CLASS.sub("x", _ESCAPE.sub("x", text)))
    if ignored:
        raise GuideError(f"{ignored[0]} cannot be followed at its place in the regular expression")


def _check_schema(schema: Any) -> None:
    """Raises `GuideError` for a part that xgrammar ignores; it reports other problems of a schema itself."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            _check_keywords(part)
            left += _parts(part)


def _check_tags(tags: Any) -> None:
    """Raises `GuideError` for a structural tag with such a schema, in the present form or that of 0.1.21."""
    left = [tags]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            for keyword in _OF_TAGS:
                _check_schema(part.get(keyword))
            if part.get("type") == "regex" and isinstance(part.get("pattern"), str):
                _check_regex(part["pattern"])
            left += (value for key, value in part.items() if key not in _OF_TAGS)
        elif isinstance(part, list):
            left += part


def _check_keywords(part: dict[str, Any]) -> None:
    for keyword in _IGNORED:
        if keyword in part:
            raise GuideError(f"{keyword} of the schema cannot be followed")
    reference = part.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        raise GuideError(f"$ref {reference[:_LONGEST_REFERENCE]!r} is outside of the schema")
    several = part.get("allOf")
    if isinstance(several, list) and len(several) > 1:
        raise GuideError("allOf of several schemas cannot be followed; merge them")
    for keyword in ("anyOf", "oneOf", "allOf", "type", "enum"):  # xgrammar takes some for an empty text.
        if part.get(keyword) == []:
            raise GuideError(f"{keyword} of the schema is empty, so it allows nothing")
    properties, expressions = part.get("properties"), part.get("patternProperties")
    for expression in (part.get("pattern"), *(expressions if isinstance(expressions, dict) else ())):
        _check_regex(expression if isinstance(expression, str) else "")
    for name in part["required"] if isinstance(part.get("required"), list) else ():
        if not isinstance(properties, dict) or name not in properties:
            raise GuideError(f"required {str(name)[:_LONGEST_REFERENCE]!r} is none of the properties")
    _check_values(part)
    alone = [keyword for keyword in _ALONE if keyword in part]
    others = [keyword for keyword in (*alone[1:], *_SHAPES) if keyword in part]
    if alone and others:
        raise GuideError(f"{alone[0]} and {others[0]} of one schema cannot be followed together; merge them")


def _check_values(part: dict[str, Any]) -> None:
    """Raises `GuideError` for a value that the type, or an `enum` beside `const`, forbids."""
    types = part.get("type", [])
    types, enum = types if isinstance(types, list) else [types], part.get("enum", [])
    for value in [part["const"]] if "const" in part else enum if isinstance(enum, list) else []:
        own = [_TYPES.get(type(value).__name__, "number")]
        if type(value) is int or (type(value) is float and value.is_integer()):
            own.append("integer")
        if (types and not any(name in types for name in own)) or ("enum" in part and value not in enum):
            said = json.dumps(value)[:_LONGEST_REFERENCE]
            raise GuideError(f"the value {said} is not allowed by the rest of its schema")


def _parts(part: dict[str, Any]) -> Iterator[Any]:
    """Yields the schemas in a schema; values of `const`, `enum` and `default` are none."""
    for keyword in _NAMED:
        if isinstance(named := part.get(keyword), dict):
            yield from named.values()
    for keyword in _LISTED:
        if isinstance(listed := part.get(keyword), list):
            yield from listed
    for keyword in _SINGLE:
        yield part.get(keyword)


_JSON = {GuideType.JSON_SCHEMA: _check_schema, GuideType.STRUCTURAL_TAG: _check_tags}


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
