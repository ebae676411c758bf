"""Runs the process of OpenAI's API in front of a server, on this machine or in a container."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trtspec.base.child import ChildProcess
from trtspec.base.environment import without_secrets
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.server import how_ended
from trtspec.gateway.openai.control import ASKED, left, opened, shut
from trtspec.gateway.openai.keys import check_keys
from trtspec.gateway.openai.settings import ApiSettings
from trtspec.gateway.ports import Ports, listen
from trtspec.serving.triton.agreement import NAMING

_END_S = 10.0
_AGAIN_S = 1.0
# The seconds between two checks of the process, and the number of answers that it may miss.
_ASK_S = 5.0
_MOST_OWED = 6
# The variables that tell docker's command line, which the process asks, where the daemon is. Podman's are no
# secrets by their names, and reach it as they are.
_DOCKERS = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY")


class OpenAi:
    """Listens from `start` to `close`; passes requests to the model from `open` to `shut`.

    A process that ends unexpectedly, or does not answer for half a minute, is replaced, which the server's
    log tells; new clients wait meanwhile.
    """

    def __init__(self, deployment: Deployment, url_host: str) -> None:
        """Takes the host on which the server's HTTP is; raises `UnavailableError` for a file without keys."""
        keys = deployment.api_keys
        if keys is not None:
            check_keys(keys)
            keys = keys.resolve()
        tokenizer, card = deployment.build / "tokenizer", deployment.card
        name, origins = deployment.model_name, deployment.origins
        self._settings = ApiSettings(name, None, tokenizer, keys, card=card, origins=origins)
        self._host, self._port, self._log = deployment.host, deployment.ports.openai, deployment.api_log
        self._server_log = deployment.log
        self._url_host, self._naming = url_host, deployment.naming
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._said = shut("starting")

    def start(self) -> None:
        """Starts to listen; raises `UnavailableError` if it cannot."""
        assert self._port is not None, "a deployment without a port for OpenAI's API has none"
        self._listener = listen(self._host, self._port, "openai")
        self._log.unlink(missing_ok=True)
        self._process = self._begin()
        self._thread = threading.Thread(target=self._watch, name="trtspec-openai", daemon=True)
        self._thread.start()

    def open(self, ports: Ports) -> None:
        """Passes requests to the HTTP port of a server from now on."""
        self._say(opened(f"http://{self._url_host}:{ports.http}"))

    def shut(self, state: str, *, is_alive: bool = True) -> None:
        """Refuses new requests from now on; `state` says why."""
        self._say(shut(state))

    def leave(self, container: str) -> None:
        """Detaches the process, which runs until the container with this id is removed."""
        self._say(left(container))
        self._let_go()
        self._listener.close()

    def close(self) -> None:
        """Ends the process, once its last answers have been sent."""
        self._let_go()
        self._process.end()
        self._thread.join()
        self._listener.close()

    def _begin(self) -> _Process:
        number = self._listener.fileno()
        command = [sys.executable, "-m", "trtspec.gateway.openai", str(number), self._settings.to_json()]
        return _Process(command, number, self._log, {NAMING: self._naming})

    def _watch(self) -> None:
        while True:
            how = self._process.wait(self._is_over)
            if self._is_over.is_set():
                return
            with self._server_log.open("a") as log:
                log.write(f"trtspec: the process of OpenAI's API {how}; another one begins\n")
            self._is_over.wait(_AGAIN_S)
            with self._lock:
                if self._is_over.is_set():
                    return
                self._process = self._begin()
                self._process.say(self._said)

    def _say(self, line: bytes) -> None:
        with self._lock:
            self._said = line
            self._process.say(line)

    def _let_go(self) -> None:
        with self._lock:
            self._is_over.set()
            self._process.hang_up()


class _Process:
    """One process of the API.

    It reads commands from its standard input, a socket, and answers there. It listens on the socket with the
    given number.
    """

    def __init__(self, command: Sequence[str], listener: int, log: Path, secrets: Mapping[str, str]) -> None:
        self.has_answered = False
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(_ASK_S)
        with log.open("ab") as output, theirs:
            dockers = {name: os.environ[name] for name in _DOCKERS if name in os.environ}
            self._child = ChildProcess(
                command,
                output,
                environment={**without_secrets(os.environ), **dockers, **secrets},
                stdin=theirs.fileno(),
                keeps=(listener,),
            )
        self.say(ASKED)

    def say(self, line: bytes) -> None:
        # A process that has just ended is followed by another one, which is told then.
        with suppress(OSError):
            self._channel.sendall(line)

    def hang_up(self) -> None:
        """Lets the process end, or continue alone if it was detached."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)

    def wait(self, is_over: threading.Event) -> str:
        """Returns how the process has ended, or why it was ended; leaves it alone once `is_over` is set.

        One that has not answered yet may still be loading.
        """
        owed = 0
        with self._channel:
            while owed <= _MOST_OWED and not is_over.is_set():
                try:
                    heard = self._channel.recv(1 << 10)
                except TimeoutError:
                    self.say(ASKED)
                    owed += self.has_answered
                    continue
                except ConnectionError:
                    heard = b""
                if not heard:
                    status = self._child.wait()
                    assert status is not None, "no limit is set for its answer"
                    return how_ended(status)
                owed, self.has_answered = 0, True
        if not is_over.is_set():
            self._child.kill()
        return f"has not answered {_MOST_OWED} times in a row"

    def end(self) -> None:
        """Waits for the process, which has been told to end, and kills it if that takes too long."""
        if self._child.wait(_END_S) is None:
            self._child.kill()
