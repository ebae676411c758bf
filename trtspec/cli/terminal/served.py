"""Prints the messages of `trtspec deploy` about its server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trtspec.base.log_line import as_json
from trtspec.cli.terminal.output import out
from trtspec.deployment.triton_server import UNREADY
from trtspec.pipeline.containers.program import find_program

if TYPE_CHECKING:
    from trtspec.base.errors import ServerError
    from trtspec.deployment.deployment import Deployment


class ServerTalk:
    """Prints the states of the server; `left` names the container that is left running, if there is one."""

    def __init__(self, deployment: Deployment, left: str | None) -> None:
        self._deployment, self._left = deployment, left

    @contextmanager
    def starting(self) -> Iterator[Callable[[str], None]]:
        software, log = self._deployment.software, self._deployment.log
        with out.progress(f"starting {software} (log: {log})") as advance:
            yield lambda does: advance(0, does)

    def ready(self) -> None:
        how = f"trtspec deploy stop {self._left} stops it" if self._left else "Ctrl-C stops it"
        out.status(f"{self._deployment.model_name} is ready; {how}")
        if self._left:
            out.status(f"its log: {find_program().name} logs --follow {self._left}")
        for what, where in self._deployment.addresses.items():
            out.result(f"{what:<8} {where}")
        out.result(self._deployment.example)
        if "OpenAI" in self._deployment.addresses:
            out.next("chat")

    def said(self, line: str) -> None:
        out.status(line)

    def failed(self, error: ServerError, delay: float) -> None:
        out.warning(f"{error}; starting again in {delay:g} s")

    def stopping(self) -> None:
        out.status("stopping; requests in flight may end first, a second Ctrl-C does not wait for them")


class LogTalk(ServerTalk):
    """The same for a server without a terminal, whose logs all go to stdout; `log` prints them."""

    @contextmanager
    def starting(self) -> Iterator[Callable[[str], None]]:
        out.status(f"starting {self._deployment.software}")
        yield lambda _: None

    def ready(self) -> None:
        out.status(f"{self._deployment.model_name} is ready")

    def said(self, line: str) -> None: ...

    def log(self, name: str, line: str) -> None:
        """Prints a line of a log, as JSON if the models log JSON. Lines about making the server unready are
        left out."""
        if UNREADY in line or (self._deployment.json_logs and line[0] in "+|"):
            return
        out.log(as_json(line, name) if self._deployment.json_logs else line)
