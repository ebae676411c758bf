"""Reads the servers of a proof from the command line: an address, a built recipe, or a command to start."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from trtspec.base.child import ChildProcess
from trtspec.base.errors import MeasureError, ServerError, UnavailableError
from trtspec.base.tail import last_bytes
from trtspec.client.finding import shown
from trtspec.client.scrape import read
from trtspec.deployment.deploy import place_of
from trtspec.deployment.options import for_measurement
from trtspec.gateway.ports import LOOPBACK, reserved_ports
from trtspec.measure.verify.opening import ServerAddress, ServerStart, built_target, start_of

_RECIPES = (".yaml", ".yml")
_PORT, _OWN_PORT = "--port", "--openai-port"
"""The options of a port: of other servers, and of `trtspec deploy`."""
_KEY = re.compile(r"(--api-key[= ]+)\S+")
_STOP_S, _LINES, _BYTES = 20.0, 5, 1 << 14


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


@contextmanager
def opened(
    words: str, python: Path | None, key: str | None, model: str | None, *, plain: bool = False
) -> Iterator[ProvedServer]:
    """Yields the server that `words` name; nothing is started yet.

    `words` are a URL, a recipe's file (`recipe.yaml:DIR` for another build than its usual one), or the
    command line of a server. `plain` opens a recipe of another engine's server without drafts. Raises
    `MeasureError` for other words, and as `find_build` does.
    """
    if words.startswith(("http://", "https://")):
        yield ProvedServer(shown(words), ServerAddress(words, model, key))
        return
    file, _, folder = words.partition(":")
    with ExitStack() as stack:
        if file.endswith(_RECIPES):
            yield _built(file, folder or None, python, stack, plain=plain)
        elif " " in words:
            yield _launched(words, model, stack)
        else:
            repair = "name a URL, a recipe's file, or a command in quotes: 'vllm serve MODEL'"
            raise MeasureError(words, "is no server", repair)


def _built(
    recipe: str, folder: str | None, python: Path | None, stack: ExitStack, *, plain: bool
) -> ProvedServer:
    target = built_target(Path(recipe), folder)
    asked = stack.enter_context(for_measurement(target.build, python=python, plain=plain))
    start = start_of(place_of(target.build, asked), prefers_openai=True)
    tokenizer = target.build.folder / "tokenizer"
    decodes_plainly = not (target.launch or target.has_engine_draft)
    return ProvedServer(start.name, start.address, start, tokenizer, target.numbers, decodes_plainly)


def _launched(words: str, model: str | None, stack: ExitStack) -> ProvedServer:
    """Returns a server that a command starts; the option of its port is added where it has none."""
    line = shlex.split(words)
    option = _OWN_PORT if "deploy" in line[1:2] else _PORT
    if option in line[:-1]:
        port = line[line.index(option) + 1]
    else:
        (free,) = stack.enter_context(reserved_ports(1))
        port, line = str(free), [*line, option, str(free)]
    log = Path(".trtspec", f"served-{port}.log").absolute()
    address = ServerAddress(f"http://{LOOPBACK}:{port}/v1", model)
    name = _KEY.sub(r"\1...", words)
    start = ServerStart(name, address, log, partial(_serve, line, port, log))
    folders = (Path(word) for word in line if (Path(word) / "tokenizer.json").is_file())
    options = dict(pairwise(line))
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
        try:
            read(f"http://{LOOPBACK}:{self.port}/v1/models")
        except UnavailableError:
            return False
        return True

    def stop(self) -> None:
        self.child.stop(_STOP_S)
