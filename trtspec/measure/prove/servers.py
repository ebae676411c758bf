"""Reads the servers of a proof from the command line, and starts those that do not run.

The command line has an address, a built recipe, or a command to start.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from trtspec.base.child import ChildProcess
from trtspec.base.environment import without_keys
from trtspec.base.errors import MeasureError, ServerError, UnavailableError
from trtspec.base.progress import no_progress
from trtspec.base.tail import last_bytes
from trtspec.client.finding import shown
from trtspec.client.scrape import status_of
from trtspec.deployment.deploy import place_of
from trtspec.deployment.place import ServingPlace
from trtspec.gateway.ports import LOOPBACK, reserved_ports
from trtspec.measure.bench.deployed import for_measurement
from trtspec.measure.verify.opening import ServerAddress, built_target, deployed
from trtspec.measure.verify.sides import ChatAnswer, ChatSide, Side, VerifyAnswer, VerifyRequest
from trtspec.serving.executor import MAX_TOP_LOG_PROBS

_RECIPES = (".yaml", ".yml")
_PORT, _OWN_PORT = "--port", "--openai-port"
"""The options of a port: of other servers, and of `trtspec deploy`."""
_ADDRESS = re.compile(r"[\w.-]+:\d+(/v1)?")
_ANSWERS = (200, 401, 403)
"""The statuses of a server that is ready; one that wants a key says so."""
_STOP_S, _LOOK_S, _LINES, _BYTES = 20.0, 0.1, 5, 1 << 14


class StartedServer(Protocol):
    """A server that was started."""

    def is_ready(self) -> bool:
        """Says whether it answers; raises `TrtspecError` if it has ended."""

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ServerStart:
    """A server that is started here, and stopped at the end of its context."""

    name: str
    address: ServerAddress
    log: Path
    serve: Callable[[], AbstractContextManager[Callable[[], StartedServer]]]


@dataclass(frozen=True, slots=True)
class ProvedServer:
    """A server of a proof: one that runs, or one that is started here."""

    name: str
    address: ServerAddress
    start: ServerStart | None = None
    """None for a server that runs already."""
    tokenizer: Path | None = None
    """The folder of its model's tokenizer, if it is known."""
    dtype: str | None = None
    """The type of the numbers, if it is known."""
    decodes_plainly: bool = True
    """False for a server whose requests cannot ask for plain decoding; an address is asked later."""
    doubt: str | None = None
    """The known fault of its server with drafts; None without one."""


@contextmanager
def opened(
    words: str, python: Path | None, key: str | None, model: str | None, *, plain: bool = False
) -> Iterator[ProvedServer]:
    """Yields the server that `words` name; nothing is started yet.

    `words` are a URL, a recipe's file (`recipe.yaml:DIR` for another build than its usual one), or the
    command line of a server. `plain` opens a recipe of another engine's server without drafts. Raises
    `MeasureError` for other words, and as `find_build` does.
    """
    if words.startswith(("http://", "https://")) or _ADDRESS.fullmatch(words):
        yield ProvedServer(shown(words), ServerAddress(words, model, key))
        return
    file, _, folder = words.partition(":")
    with ExitStack() as stack:
        if file.endswith(_RECIPES):
            name = f"{words}, without drafts" if plain else words
            yield _built(name, file, folder or None, python, stack, plain=plain)
        elif " " in words:
            yield _launched(words, model, key, stack)
        else:
            repair = "name a URL, a recipe's file, or a command in quotes: 'vllm serve MODEL'"
            raise MeasureError(words, "is no server", repair)


def _built(
    name: str, recipe: str, folder: str | None, python: Path | None, stack: ExitStack, *, plain: bool
) -> ProvedServer:
    target = built_target(Path(recipe), folder)
    asked = stack.enter_context(for_measurement(target.build, python=python, plain=plain))
    start = _start_of(place_of(target.build, asked))
    tokenizer = target.build.folder / "tokenizer"
    decodes_plainly = not (target.build.launch or target.has_engine_draft)
    doubt = None if plain else target.build.doubt
    return ProvedServer(name, start.address, start, tokenizer, target.numbers, decodes_plainly, doubt)


def _start_of(place: ServingPlace) -> ServerStart:
    """Returns the start of a build's server."""
    deployment = place.deployment
    drafts = "without drafts" if deployment.is_plain else "with drafts"

    @contextmanager
    def serve() -> Iterator[Callable[[], StartedServer]]:
        place.prepare(no_progress)
        with place.serve() as start:
            yield start

    address = ServerAddress(deployment.api_url or deployment.url, deployment.model_name)
    name = f"{deployment.software} {drafts}, {deployment.build}"
    return ServerStart(name, address, deployment.log, serve)


def _launched(words: str, model: str | None, key: str | None, stack: ExitStack) -> ProvedServer:
    """Returns a server that a command starts; the option of its port is added where it has none."""
    line = shlex.split(words)
    option = _OWN_PORT if "deploy" in line[1:2] else _PORT
    if option in line[:-1]:
        port = line[line.index(option) + 1]
    else:
        (free,) = stack.enter_context(reserved_ports(1))
        port, line = str(free), [*line, option, str(free)]
    log = Path(".trtspec", f"served-{port}.log").absolute()
    options = dict(pairwise(part for word in line for part in word.split("=", 1)))
    address = ServerAddress(f"http://{LOOPBACK}:{port}/v1", model, key or options.get("--api-key"))
    name = without_keys(words)
    start = ServerStart(name, address, log, partial(_serve, line, port, log))
    folders = (Path(word) for word in line if (Path(word) / "tokenizer.json").is_file())
    return ProvedServer(name, address, start, next(folders, None), options.get("--dtype"), False)


@contextmanager
def _serve(line: list[str], port: str, log: Path) -> Iterator[Callable[[], _Launched]]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as said, ExitStack() as stack:

        def start() -> _Launched:
            child = ChildProcess(line, said, environment=os.environ, orphaned=signal.SIGTERM)
            stack.callback(child.kill)
            return _Launched(line[0], child, port, log)

        yield start


@dataclass(frozen=True, slots=True)
class _Launched:
    """The process of a command."""

    name: str
    child: ChildProcess
    port: str
    log: Path

    def is_ready(self) -> bool:
        if (status := self.child.poll()) is not None:
            lines = last_bytes(self.log, _BYTES).strip().splitlines()[-_LINES:]
            raise ServerError(
                self.name, f"ended with status {status}: {' | '.join(lines)}", f"see {self.log}"
            )
        return status_of(f"http://{LOOPBACK}:{self.port}/v1/models") in _ANSWERS

    def stop(self) -> None:
        self.child.stop(_STOP_S)


async def begin(start: ServerStart, running: AsyncExitStack, say: Callable[[str], None]) -> None:
    """Starts a server and waits until it is ready; `running` stops it. Raises as its `serve` does."""
    say(f"starting {start.name} (log: {start.log})")
    server = running.enter_context(start.serve())()
    running.callback(server.stop)
    while not server.is_ready():
        await asyncio.sleep(_LOOK_S)


class ServerTurns:
    """Runs one server at a time. The two sides must not be asked at once."""

    def __init__(self, end_ids: Collection[int], say: Callable[[str], None]) -> None:
        self._end_ids, self._say = end_ids, say
        self._lock, self._running = asyncio.Lock(), AsyncExitStack()
        self.turn: ServedSide | None = None
        """The side whose server was started last."""
        self._reached: Side | None = None

    async def reach(self, side: ServedSide) -> Side:
        """Returns a side's server, after starting it if necessary; raises `ServerError`."""
        async with self._lock:
            if self.turn is not side or self._reached is None:
                await self.end()
                self.turn, self._reached = side, await self._start(side)
            return self._reached

    async def end(self) -> None:
        """Ends the server that runs, if one does."""
        self._reached = None
        await self._running.aclose()

    async def _start(self, side: ServedSide) -> Side:
        await begin(side.start, self._running, self._say)
        reached, _ = await deployed(side.start.address, self._end_ids)
        self._running.push_async_callback(reached.close)
        side.known = reached
        return reached


class ServedSide:
    """A side whose server starts at a request, after the other's server has been stopped."""

    def __init__(self, start: ServerStart, turns: ServerTurns) -> None:
        self.start, self._turns, self.name = start, turns, start.name
        self.known: Side | None = None
        """Its server as it was started last; None if it never was."""

    @property
    def top_log_probs(self) -> int:
        """As many as it may report, until it has been started."""
        return self.known.top_log_probs if self.known else MAX_TOP_LOG_PROBS

    @property
    def longest(self) -> int | None:
        return self.known.longest if self.known else None

    @property
    def software(self) -> str | None:
        return self.known.software if self.known else None

    async def ask(self, question: VerifyRequest) -> VerifyAnswer:
        return await (await self._turns.reach(self)).ask(question)

    async def chat(self, body: Mapping[str, Any], num_draft_tokens: int | None) -> ChatAnswer:
        reached = await self._turns.reach(self)
        if not isinstance(reached, ChatSide):
            raise UnavailableError(self.name, "has no chats of OpenAI's API")
        return await reached.chat(body, num_draft_tokens)

    async def close(self) -> None:
        await self._turns.end()
