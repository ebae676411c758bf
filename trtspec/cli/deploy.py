"""`trtspec deploy`: a built recipe under a real Triton, in the foreground."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.options import OutputOption, RecipeArgument
from trtspec.cli.output import out
from trtspec.errors import ServerError, UnavailableError

if TYPE_CHECKING:
    from trtspec.deploy.local import Deployment, LocalServer
    from trtspec.recipe.schema import Recipe

EXAMPLES = ("trtspec deploy recipe.yaml", "trtspec deploy recipe.yaml --http-port 9000 --grpc-port 9001")

_INTERRUPTED = 130


def deploy(
    recipe: RecipeArgument,
    output: OutputOption = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; Triton asks nobody for a password.")
    ] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Triton's HTTP.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Triton's gRPC.")] = 8001,
    metrics_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the metrics.")] = 8002,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that loading the engines may take.")] = 300,
) -> None:
    """Serve a built recipe under Triton until Ctrl-C or SIGTERM.

    Requests in flight then have ten seconds to end. The exit status is 0 for a server that was ready and was
    stopped so, 130 for one that was stopped before it was ready, 1 for one that ended by itself.
    """
    from trtspec.deploy.local import Deployment, last_lines, serve
    from trtspec.deploy.ports import Ports
    from trtspec.deploy.wheel import find_wheel
    from trtspec.plan.resolve import build_folder
    from trtspec.recipe.loader import load

    loaded = load(recipe)
    build = build_folder(loaded, {"output": output}, os.environ)
    if not (build / "model_repository").is_dir():
        repair = f"trtspec build {recipe}" + (f" --output {output}" if output else "")
        raise UnavailableError(build, "there is no build here", repair)
    _check_engines(build, loaded.recipe)
    deployment = Deployment(
        repository=build / "model_repository",
        model_name=loaded.recipe.serving.model_name,
        log=build / "tritonserver.log",
        host=host,
        ports=Ports(http_port, grpc_port, metrics_port),
        start_s=timeout,
    )
    with _told_to_stop() as stop, serve(deployment, find_wheel()) as server:
        try:
            with out.progress(f"starting Triton (log: {deployment.log})"):
                _wait_until_ready(server, stop)
            _announce(deployment)
            while not stop.wait(0.2):
                server.check_running()
        except ServerError:
            for line in last_lines(deployment.log):
                out.status(line)
            raise
        out.status("stopping; requests in flight may end first, a second Ctrl-C does not wait for them")
    out.status("stopped")


def _check_engines(build: Path, recipe: Recipe) -> None:
    """What would fail after minutes of loading is refused at once."""
    from trtspec.checkpoint.tokenizer import read_tokenizer
    from trtspec.engine.loading import Pair, built_with, check_loading
    from trtspec.plan.runtime import this_runtime
    from trtspec.repository.placement import place

    gpus = place(recipe.target.parallel.ranks, recipe.draft.parallel.ranks, recipe.hardware.count)
    pair = Pair(build / "target/engine", build / "draft/engine", gpus.target, gpus.draft)
    size, built = read_tokenizer(build / "tokenizer").size, built_with(build / "manifest.json")
    check_loading(pair, recipe.speculation.num_draft_tokens or 1, size, built, this_runtime())


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


def _wait_until_ready(server: LocalServer, stop: threading.Event) -> None:
    while not server.is_ready():
        if stop.wait(0.1):
            raise typer.Exit(_INTERRUPTED)


def _announce(deployment: Deployment) -> None:
    host, ports = deployment.client_host, deployment.ports
    host = f"[{host}]" if ":" in host else host
    model = f"http://{host}:{ports.http}/v2/models/{deployment.model_name}"
    body = json.dumps({"text_input": "def fib(", "max_tokens": 64, "stream": True})
    out.status(f"{deployment.model_name} is ready; Ctrl-C stops it")
    out.result(f"HTTP     {model}/generate  {model}/generate_stream")
    out.result(f"gRPC     {host}:{ports.grpc}")
    out.result(f"metrics  http://{host}:{ports.metrics}/metrics")
    out.result(f"curl -sN {model}/generate_stream -d '{body}'")
