"""`trtspec top`: a running deployment, live."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.terminal import live
from trtspec.cli.terminal.options import JsonOption
from trtspec.cli.terminal.output import out
from trtspec.client.local_server import one_address
from trtspec.client.scrape import parse, read
from trtspec.deployment.figures import between, choose
from trtspec.gateway.ports import LOOPBACK, METRICS

if TYPE_CHECKING:
    from trtspec.deployment.figures import ServerFigures

EXAMPLES = (
    "trtspec top",
    "trtspec top --url http://gpu-host:8002/metrics --interval 5",
    "trtspec top --once --json",
)


def top(
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The URL of the metrics.",
            show_default=f"what deploy serves here, or :{METRICS}",
        ),
    ] = None,
    model_name: Annotated[
        str | None, typer.Option(help="The recipe's serving.model_name.", show_default="the only one")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two scrapes.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval and end.")] = False,
    json: JsonOption = False,
) -> None:
    """Show a server live: streams, speed, acceptance, K, queue.

    It reads only the server's metrics. On a terminal the figures change in place. Elsewhere top prints the
    figures of each interval, with --json as one line of JSON.
    """
    url = url or one_address(lambda server: server.metrics) or f"{LOOPBACK}:{METRICS}"
    before = parse(read(url), time.monotonic())
    model = choose(before, model_name, url)
    with _shown(f"{model} at {url}", json) as show:
        while True:
            time.sleep(interval)
            now = parse(read(url), time.monotonic())
            show(between(before, now, model))
            before = now
            if once:
                return


@contextmanager
def _shown(header: str, as_json: bool) -> Iterator[Callable[[ServerFigures], None]]:
    if as_json:
        import json

        yield lambda figures: out.result(json.dumps(asdict(figures)))
    elif sys.stdout.isatty():
        with live.drawn(header) as draw:
            yield draw
    else:
        yield lambda figures: out.table([("", header), *live.rows(figures)])
