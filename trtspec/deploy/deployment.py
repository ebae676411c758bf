"""A deployment: what is served, and where."""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import shutil
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.deploy.logs import begin_log
from trtspec.deploy.patience import with_engines
from trtspec.gateway.addresses import LOOPBACK, client_host, in_url, is_loopback
from trtspec.gateway.ports import Ports
from trtspec.serving.metrics import COUNTED
from trtspec.serving.rollout.file import ROLLOUT
from trtspec.serving.triton.logs import LOG_FORMAT

_RUNNING = re.compile(r"^trtspec:num_requests_running\{.*\} (\S+)$", re.MULTILINE)
_COUNTED = re.compile(rf"^{COUNTED}\{{.*\}} (\S+)$", re.MULTILINE)

GRACE_S = 10.0
"""The seconds that requests in flight have to end in, when the server is told to end."""

KEY_HEADER = "trtspec-key"
"""The header of HTTP and gRPC requests to the APIs that change the server; it carries the key."""

UNREADY = "trtspec_is_stopping"
"""The name of a model that cannot be loaded, by which the server is made unready."""


def rollout_file(build: Path) -> Path:
    """Returns the file that says where a build's roll-out stands; its servers see it at the same path."""
    return build / "rollout.json"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A build directory and the addresses that its Triton listens on."""

    name: str
    build: Path
    model_name: str
    ranks: int = 1
    """The number of ranks of the engine that has the most."""
    host: str = LOOPBACK
    private_host: str | None = None
    """The host of HTTP and the metrics, if they are not on `host`."""
    ports: Ports = field(default_factory=Ports)
    start_s: float = with_engines(()).seconds
    """The seconds that loading the engines may take."""
    grace_s: float = GRACE_S
    """The seconds that requests in flight have to end in."""
    loads_one_by_one: bool = False
    """No two engines are loaded at once. Two of one rank in NVIDIA's C++ backend would make MPI groups with
    the same tag.
    """
    json_logs: bool = False
    """The models log lines of JSON."""
    trace_config: tuple[str, ...] = ()
    """Each is an option of Triton's."""
    api_keys: Path | None = None
    """The file of keys, one of which opens OpenAI's API. Without it that API is open."""
    rollout: Path | None = None
    """The file of a roll-out; it is in the build if this is None."""
    logs: Path | None = None
    """The folder of the logs; they are in the build if this is None."""
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """Opens the APIs that change the server."""

    @property
    def container_name(self) -> str:
        """The name of its container."""
        return self.name

    @property
    def repository(self) -> Path:
        return self.build / "model_repository"

    @property
    def log(self) -> Path:
        return (self.logs or self.build) / "tritonserver.log"

    @property
    def api_log(self) -> Path:
        """The log of OpenAI's API."""
        return (self.logs or self.build) / "openai.log"

    @property
    def all_logs(self) -> dict[str, Path]:
        """The logs by who writes them."""
        return {"tritonserver": self.log, "openai": self.api_log}

    def begin_log(self) -> None:
        begin_log(self.log)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which the models are told of the deployment."""
        logs = {LOG_FORMAT: "json"} if self.json_logs else {}
        return {ROLLOUT: str(self.rollout or rollout_file(self.build)), **logs}

    @property
    def is_public(self) -> bool:
        """True if other machines can reach it."""
        return not is_loopback(self.host)

    @property
    def client_host(self) -> str:
        """The host at which a client on this machine finds the server."""
        return client_host(self.host)

    @property
    def url(self) -> str:
        return f"http://{self.url_host}:{self.ports.http}/v2/models/{self.model_name}"

    @property
    def api_url(self) -> str | None:
        """The URL of OpenAI's API; None if it is not served."""
        return f"http://{self.url_host}:{self.ports.openai}/v1" if self.ports.openai else None

    @property
    def exposure(self) -> str | None:
        """A warning for the user who lets other machines reach it; None if there is nothing to say."""
        if self.is_public and self.ports.openai and not self.api_keys:
            return "whoever reaches OpenAI's API may use it; --api-keys FILE asks for keys"
        return None

    @property
    def software(self) -> str:
        return "Triton"

    @property
    def addresses(self) -> dict[str, str]:
        """The names and URLs of everything that clients can ask."""
        url, host = self.url, self.url_host
        api = {"OpenAI": self.api_url} if self.api_url else {}
        return {
            "HTTP": f"{url}/generate  {url}/generate_stream",
            **api,
            "gRPC": f"{host}:{self.ports.grpc}",
            "metrics": f"http://{host}:{self.ports.metrics}/metrics",
        }

    @property
    def example(self) -> str:
        """A command that asks the model."""
        body = json.dumps({"text_input": "def fib(", "max_tokens": 64, "stream": True})
        return f"curl -sN {self.url}/generate_stream -d '{body}'"

    @property
    def url_host(self) -> str:
        """The client's host as URLs write it."""
        return in_url(self.client_host)

    def is_ready(self) -> bool:
        """Says whether the server takes requests for the model."""
        path = f"/v2/models/{self.model_name}/ready"
        return all(self._get(self.ports.http, url) is not None for url in (path, "/v2/health/ready"))

    def answers(self) -> bool:
        """Says whether the server gives an answer at all, be it ready or not."""
        return self._get(self.ports.http, "/v2/health/live") is not None

    def pulse(self) -> list[str]:
        """Returns what the model's process has last told of its own time, which it tells every second.

        The list is empty where the metrics do not answer, or the model is none that tells it.
        """
        return _COUNTED.findall(self._get(self.ports.metrics, "/metrics") or "")

    def make_unready(self) -> None:
        """Makes the server say that it is not ready, while requests that run go on.

        Triton says so once a model has failed to load, so it is told to load one that must fail. No model is
        unloaded, since new requests would then be told that there is no such model.
        """
        model = json.dumps({"parameters": {"config": '{"backend": "none"}', f"file:1/{_mark()}": ""}})
        self._ask("POST", self.ports.http, f"/v2/repository/models/{UNREADY}/load", model)

    def clean_up(self) -> None:
        """Removes what `make_unready` leaves behind a server on this machine that had to be killed.

        Triton keeps the files of a model that came by HTTP in a folder of /tmp until it ends (core,
        `MakeTemporaryDirectory`).
        """
        for file in Path("/tmp").glob(f"folder*/1/{_mark()}"):  # noqa: S108
            shutil.rmtree(file.parents[1], ignore_errors=True)

    def is_idle(self) -> bool:
        """Says whether no completion runs, as far as the metrics know, which change 20 times a second."""
        running = _RUNNING.findall(self._get(self.ports.metrics, "/metrics") or "")
        return not any(float(number) for number in running)

    def _get(self, port: int, path: str) -> str | None:
        return self._ask("GET", port, path)

    def _ask(self, method: str, port: int, path: str, body: str | None = None) -> str | None:
        """Returns the body of an answer with status 200, else None; asks no proxies of the environment."""
        host = self.private_host or self.client_host
        with closing(http.client.HTTPConnection(host, port, timeout=5)) as connection:
            try:
                connection.request(method, path, body, {KEY_HEADER: self.key} if body else {})
                response = connection.getresponse()
                return response.read().decode(errors="replace") if response.status == 200 else None
            except (OSError, http.client.HTTPException):
                return None


def _mark() -> str:
    """Returns the name of the file by which the folder of `make_unready` is known."""
    return f"trtspec-{os.getpid()}"
