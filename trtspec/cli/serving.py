"""A server in the foreground: started, announced, watched, stopped."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import typer

from trtspec.cli.output import out
from trtspec.errors import ServerError
from trtspec.tail import Tail

if TYPE_CHECKING:
    from trtspec.deploy.deployment import Deployment
    from trtspec.deploy.server import Server

_INTERRUPTED = 130


def run(serving: AbstractContextManager[Server], deployment: Deployment, left: str | None = None) -> None:
    """Serves until Ctrl-C or SIGTERM, or until it is ready where `left` is a container to be left running."""
    from trtspec.deploy.server import last_lines

    with _told_to_stop() as stop, serving as server:
        tail = Tail(deployment.log)
        try:
            _wait_until_ready(server, deployment, tail, stop)
            _announce(deployment, left)
            if left:
                return
            while not stop.wait(0.2):
                for line in tail.lines():
                    out.status(line)
                server.check_running()
        except ServerError:
            for line in last_lines(deployment.log):
                out.status(line)
            raise
        out.status("stopping; requests in flight may end first, a second Ctrl-C does not wait for them")
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
