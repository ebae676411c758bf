"""What `trtspec deploy` says of its server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trtspec.containers.program import find_program
from trtspec.deploy.deployment import UNREADY
from trtspec.log_line import as_json
from trtspec.terminal.output import out

if TYPE_CHECKING:
    from trtspec.deploy.deployment import Deployment
    from trtspec.errors import ServerError


class Talk:
    """Prints what becomes of the server; `left` names the container that is left running, if one is."""

    def __init__(self, deployment: Deployment, left: str | None) -> None:
        self._deployment, self._left = deployment, left

    @contextmanager
    def starting(self) -> Iterator[Callable[[str], None]]:
        with out.progress(f"starting Triton (log: {self._deployment.log})") as progress:
            yield lambda does: progress.advance(0, does)

    def ready(self) -> None:
        ports, url = self._deployment.ports, self._deployment.url
        host = url.removeprefix("http://").rpartition(f":{ports.http}/")[0]
        body = json.dumps({"text_input": "def fib(", "max_tokens": 64, "stream": True})
        how = f"trtspec deploy stop {self._left} stops it" if self._left else "Ctrl-C stops it"
        out.status(f"{self._deployment.model_name} is ready; {how}")
        if self._left:
            out.status(f"its log: {find_program().name} logs --follow {self._left}")
        out.result(f"HTTP     {url}/generate  {url}/generate_stream")
        if self._deployment.api_url:
            out.result(f"OpenAI   {self._deployment.api_url}")
        out.result(f"gRPC     {host}:{ports.grpc}")
        out.result(f"metrics  http://{host}:{ports.metrics}/metrics")
        out.result(f"curl -sN {url}/generate_stream -d '{body}'")

    def said(self, line: str) -> None:
        out.status(line)

    def failed(self, error: ServerError, delay: float) -> None:
        out.warning(f"{error}; starting again in {delay:g} s")

    def stopping(self) -> None:
        out.status("stopping; requests in flight may end first, a second Ctrl-C does not wait for them")


class LogTalk(Talk):
    """The same where all logs go to stdout, which `log` prints, and nobody sits at a terminal."""

    @contextmanager
    def starting(self) -> Iterator[Callable[[str], None]]:
        out.status("starting Triton")
        yield lambda _: None

    def ready(self) -> None:
        out.status(f"{self._deployment.model_name} is ready")

    def said(self, line: str) -> None: ...

    def log(self, name: str, line: str) -> None:
        """Prints a line of a log, as JSON if the models log so; nothing of how the server is made unready."""
        if UNREADY in line or (self._deployment.json_logs and line[0] in "+|"):
            return
        out.log(as_json(line, name) if self._deployment.json_logs else line)
