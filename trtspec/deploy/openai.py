"""The process of OpenAI's API in front of a server, on this machine or in a container."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from trtspec.deploy.deployment import Deployment
from trtspec.deploy.environment import for_server
from trtspec.deploy.ports import Ports, listen
from trtspec.deploy.server import Door
from trtspec.errors import UnavailableError
from trtspec.openai.control import left, opened, shut
from trtspec.openai.keys import read_keys
from trtspec.openai.settings import Settings

_END_S = 10.0
_AGAIN_S = 1.0
# The variables that tell docker's command line, which the process asks, where the daemon is. Podman's are no
# secrets by their names, and reach it as they are.
_DOCKERS = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY")


class OpenAi:
    """Listens from `start` to `close`; requests go to the model from `open` to `shut`.

    A process that ends by itself is started again; clients that come meanwhile wait.
    """

    def __init__(self, deployment: Deployment, url_host: str) -> None:
        """Takes the host on which the server's HTTP is; raises `UnavailableError` for a file without keys."""
        tokenizer, keys = str(deployment.build / "tokenizer"), deployment.api_keys
        if keys is not None:
            check_keys(keys)
        self._settings = Settings(
            deployment.model_name, None, tokenizer, str(keys.resolve()) if keys else None
        )
        self._host, self._port, self._log = deployment.host, deployment.ports.openai, deployment.api_log
        self._url_host = url_host
        self._lock, self._is_over = threading.Lock(), False
        self._said = shut("starting")

    def start(self) -> None:
        """Begins to listen; raises `UnavailableError` where it cannot."""
        assert self._port is not None, "a deployment without a port for OpenAI's API has none"
        self._listener = listen(self._host, self._port, "openai")
        self._log.unlink(missing_ok=True)
        self._process = self._begin()
        threading.Thread(target=self._watch, name="trtspec-openai", daemon=True).start()

    def open(self, ports: Ports) -> None:
        """Has requests passed, from now on, to the HTTP port of a server."""
        self._say(opened(f"http://{self._url_host}:{ports.http}"))

    def shut(self, state: str, *, is_alive: bool = True) -> None:
        """Has new requests refused, from now on; `state` says why."""
        self._say(shut(state))

    def leave(self, container: str) -> None:
        """Lets the process go on alone, until the container with this id is removed."""
        with self._lock:
            self._is_over = True
            self._write(left(container))
            self._hang_up()
        self._listener.close()

    def close(self) -> None:
        """Ends the process, once its last answers have been sent."""
        with self._lock:
            self._is_over = True
            self._hang_up()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.close()

    def _begin(self) -> subprocess.Popen[bytes]:
        number = self._listener.fileno()
        with self._log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "trtspec.openai", str(number), self._settings.to_json()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=for_server(os.environ)
                | {name: os.environ[name] for name in _DOCKERS if name in os.environ},
                pass_fds=(number,),
                start_new_session=True,
            )

    def _watch(self) -> None:
        while True:
            self._process.wait()
            time.sleep(_AGAIN_S)
            with self._lock:
                if self._is_over:
                    return
                self._process = self._begin()
                self._write(self._said)

    def _say(self, line: bytes) -> None:
        with self._lock:
            self._said = line
            self._write(line)

    def _write(self, line: bytes) -> None:
        assert self._process.stdin
        # A process that has just ended gets the line when it is started again.
        with suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _hang_up(self) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()


class Doors:
    """Several doors that open and shut together."""

    def __init__(self, *doors: Door) -> None:
        self._doors = doors

    def open(self, ports: Ports) -> None:
        for door in self._doors:
            door.open(ports)

    def shut(self, state: str, *, is_alive: bool = True) -> None:
        for door in self._doors:
            door.shut(state, is_alive=is_alive)


def serve_line(deployment: Deployment) -> str:
    """Returns the command line that serves OpenAI's API in front of a deployment that has lost it."""
    url = f"http://{deployment.url_host}:{deployment.ports.http}"
    words = ["trtspec", "serve", "--url", url, "--tokenizer", str(deployment.build / "tokenizer")]
    words += ["--model-name", deployment.model_name, "--host", deployment.host]
    words += ["--port", str(deployment.ports.openai)]
    return shlex.join([*words, *(["--api-keys", str(deployment.api_keys)] if deployment.api_keys else [])])


def check_keys(path: Path) -> list[str]:
    """Returns the API keys of a file; raises `UnavailableError` where it has none."""
    try:
        return read_keys(path)
    except (OSError, ValueError) as error:
        problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UnavailableError(path, problem, "write one API key a line") from None
