"""A server in the foreground: started, announced, watched, started again, stopped."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import typer

from trtspec.cli.output import out
from trtspec.errors import ServerError
from trtspec.tail import Tail

if TYPE_CHECKING:
    from trtspec.deploy.deployment import Deployment
    from trtspec.deploy.restarts import Restarts
    from trtspec.deploy.server import Server

_INTERRUPTED = 130


def run(
    serving: AbstractContextManager[Callable[[], Server]],
    deployment: Deployment,
    restarts: Restarts,
    left: str | None = None,
) -> None:
    """Serves until Ctrl-C or SIGTERM, or until it is ready where `left` is a container to be left running."""
    from trtspec.deploy.server import last_lines

    with _told_to_stop() as stop, serving as start:
        tail = Tail(deployment.log)
        while True:
            server, ready_at = start(), math.inf
            try:
                _wait_until_ready(server, deployment, tail, stop)
                ready_at = time.monotonic()
                _announce(deployment, left)
                if left:
                    return
                while not stop.wait(0.2):
                    for line in tail.lines():
                        out.status(line)
                    server.check_running()
                break
            except ServerError as error:
                delay = restarts.delay(error, ready_s=time.monotonic() - ready_at)
                for line in last_lines(deployment.log):
                    out.status(line)
                if delay is None:
                    raise
                server.refuse("restarting")
                out.warning(f"{error}; starting again in {delay:g} s")
                if stop.wait(delay):
                    raise
        out.status("stopping; requests in flight may end first, a second Ctrl-C does not wait for them")
        server.stop()
    out.status("stopped")


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets; either, a second time, is a KeyboardInterrupt."""
    stop = threading.Event()

    def tell(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    previous = {number: signal.signal(number, tell) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait_until_ready(server: Server, deployment: Deployment, tail: Tail, stop: threading.Event) -> None:
    with out.progress(f"starting Triton (log: {deployment.log})") as progress:
        while not server.is_ready():
            if stop.wait(0.1):
                raise typer.Exit(_INTERRUPTED)
            if lines := tail.lines():
                progress.advance(0, lines[-1].partition("] ")[2].strip('"')[:60])
    tail.lines()


def _announce(deployment: Deployment, left: str | None) -> None:
    ports, url = deployment.ports, deployment.url
    host = url.removeprefix("http://").rpartition(f":{ports.http}/")[0]
    body = json.dumps({"text_input": "def fib(", "max_tokens": 64, "stream": True})
    how = f"trtspec deploy stop {left} stops it" if left else "Ctrl-C stops it"
    out.status(f"{deployment.model_name} is ready; {how}")
    if left:
        out.status(f"its log: docker logs --follow {left}")
    out.result(f"HTTP     {url}/generate  {url}/generate_stream")
    out.result(f"gRPC     {host}:{ports.grpc}")
    out.result(f"metrics  http://{host}:{ports.metrics}/metrics")
    out.result(f"curl -sN {url}/generate_stream -d '{body}'")
