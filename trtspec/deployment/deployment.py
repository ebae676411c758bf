"""Describes a deployment: its options, its kind of server, its addresses, and how long its start may take."""

from __future__ import annotations

import http.client
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from trtspec.backends.launch import ServerLaunch
from trtspec.backends.table import backend_named
from trtspec.base.units import three_digits
from trtspec.client.local_server import LocalServer
from trtspec.gateway.openai.settings import ModelCard
from trtspec.gateway.origins import Origins
from trtspec.gateway.ports import LOOPBACK, OPENAI, Ports, client_host, in_url, is_loopback


@dataclass(frozen=True, slots=True)
class ServerKind:
    """The facts about one kind of server."""

    name: str
    """The name of its log, and of its containers' labels: "tritonserver", or the name of a backend."""
    software: str
    """The name for people."""
    subject: str
    """The name in errors."""
    ready: tuple[str, ...]
    """The paths that all have status 200 once it takes requests; `{}` stands for the model's name."""
    models: str | None
    """The path that lists the names of its models in OpenAI's form; None where it has no such list."""
    stop_s: float
    """The seconds beyond the grace in which requests that still run are cancelled, and it ends."""
    key_variable: str | None = None
    """The variable that has the one key of its API; None where it takes none from there."""


TRITON = ServerKind(
    name="tritonserver",
    software="Triton",
    subject="tritonserver",
    ready=("/v2/health/ready", "/v2/models/{}/ready"),
    models=None,
    stop_s=5.0,
)


def kind_of(backend: str) -> ServerKind:
    """Returns the kind of a backend's own server; raises KeyError for an unknown backend."""
    found = backend_named(backend)
    return ServerKind(
        name=backend,
        software=found.title,
        subject=found.title,
        ready=("/health",),
        models="/v1/models",
        # Its engine's processes end too.
        stop_s=15.0,
        key_variable=found.key_variable,
    )


SLOW_B_S = 200e6
"""The bytes a second that a slow disk, or a network drive, gives at least."""

# An engine is ready once it is read. Another engine's server converts the weights, and may compile.
_OF_ENGINES_S, _OF_MODELS_S = 300, 1800


@dataclass(frozen=True, slots=True)
class StartLimit:
    """The time limit for a server's start: for reading files from a slow disk, and for everything else."""

    beside_s: int
    """The seconds for everything else."""
    size: float
    """The bytes of the files."""

    @property
    def seconds(self) -> float:
        return self.beside_s + self.size / SLOW_B_S

    def __str__(self) -> str:
        read = f"{three_digits(int(self.size))} at {SLOW_B_S / 1e6:.0f} MB/s"
        return f"{self.seconds:,.0f} s ({self.beside_s:,} s, and {read})"


def limit_for_engines(sizes: Iterable[int]) -> StartLimit:
    """Returns the limit for a server that loads engines of these bytes."""
    return StartLimit(_OF_ENGINES_S, sum(sizes))


def limit_for_build(build: Path) -> StartLimit:
    """Returns the limit for a server that loads the engines of a build directory."""
    return limit_for_engines(file.stat().st_size for file in build.glob("*/engine/*"))


def limit_for_models(launch: ServerLaunch) -> StartLimit:
    """Returns the limit for another engine's server, which loads the models itself."""
    return StartLimit(_OF_MODELS_S, launch.weights)


GRACE_S = 10.0
"""The seconds in which requests in flight must finish when the server is told to stop."""


def rollout_file(build: Path) -> Path:
    """Returns the file with the state of a build's roll-out; its servers see it at the same path."""
    return build / "rollout.json"


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """The options of a deployment besides its recipe and its build."""

    host: str = LOOPBACK
    allowed_hosts: tuple[str, ...] = ()
    ports: Ports = field(default_factory=lambda: Ports(openai=OPENAI))
    """That of OpenAI's API is left out where it is not served; another engine's server has it alone."""
    start_s: float | None = None
    """The seconds that the server has to be ready; None for what its files ask."""
    grace_s: float = GRACE_S
    api_keys: Path | None = None
    json_logs: bool = False
    logs: Path | None = None
    log_number: int = 1
    """That of `with_own_logs`."""
    trace_config: tuple[str, ...] = ()
    rollout: Path | None = None
    python: Path | None = None
    """The Python of another engine's server, if PATH has not its program."""
    plain: bool = False
    """True for another engine's server without drafts."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A build directory, and the addresses that its server listens on."""

    name: str
    build: Path
    model_name: str
    kind: ServerKind = TRITON
    host: str = LOOPBACK
    allowed_hosts: tuple[str, ...] = ()
    """More host names that requests to a server on the loopback may have."""
    ports: Ports = field(default_factory=Ports)
    """The ports; another engine's own server has only that of OpenAI's API."""
    start_s: float = limit_for_engines(()).seconds
    """The seconds that the server has to be ready."""
    grace_s: float = GRACE_S
    """The seconds in which requests in flight must finish."""
    is_plain: bool = False
    """True for another engine's own server that is started without drafts."""
    json_logs: bool = False
    """The models log lines of JSON."""
    api_keys: Path | None = None
    """The file of keys, one of which opens OpenAI's API. Without it that API is open."""
    logs: Path | None = None
    """The folder of the logs; they are in the build if this is None."""
    log_number: int = 1
    """Tells the logs from those of other servers of the build that run at the same time."""
    card: ModelCard = field(default_factory=ModelCard)
    """The settings of OpenAI's API in front of Triton."""
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """Opens the APIs that change Triton."""
    naming: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    """Begins the names that requests have between the model and what stands in front of it."""

    def __repr__(self) -> str:
        return f"<Deployment of {self.build}: {self.api_url}>"

    @property
    def is_triton(self) -> bool:
        return self.kind is TRITON

    @property
    def has_api_process(self) -> bool:
        """True if OpenAI's API is a process in front of Triton."""
        return self.is_triton and self.ports.openai is not None

    @property
    def container_name(self) -> str:
        """The name of its container; a server without drafts can run beside one with them."""
        return f"{self.name}{'-plain' * self.is_plain}"

    @property
    def repository(self) -> Path:
        """The model repository, which only Triton has."""
        return self.build / "model_repository"

    @property
    def log(self) -> Path:
        return self._log_of(f"{self.kind.name}{'-plain' * self.is_plain}")

    @property
    def api_log(self) -> Path:
        """The log of the process of OpenAI's API in front of Triton."""
        return self._log_of("openai")

    def _log_of(self, name: str) -> Path:
        number = f"-{self.log_number}" if self.log_number > 1 else ""
        return (self.logs or self.build) / f"{name}{number}.log"

    @property
    def all_logs(self) -> dict[str, Path]:
        """The logs by who writes them."""
        return {self.kind.name: self.log, **({"openai": self.api_log} if self.is_triton else {})}

    @property
    def is_public(self) -> bool:
        """True if other machines can reach it."""
        return not is_loopback(self.host)

    @property
    def origins(self) -> Origins:
        return Origins(self.host, self.allowed_hosts)

    @property
    def client_host(self) -> str:
        """The host at which a client on this machine finds the server."""
        return client_host(self.host)

    @property
    def url_host(self) -> str:
        """The client's host as URLs write it."""
        return in_url(self.client_host)

    @property
    def own_ports(self) -> dict[str, int]:
        """The ports of the server itself, by the names that their options have."""
        if self.is_triton:
            return {"http": self.ports.http, "grpc": self.ports.grpc, "metrics": self.ports.metrics}
        assert self.ports.openai is not None, "another engine's server has only OpenAI's API"
        return {"openai": self.ports.openai}

    @property
    def all_ports(self) -> dict[str, int]:
        """The ports that clients ask, by the names that their options have."""
        return {**self.own_ports, **({"openai": self.ports.openai} if self.ports.openai else {})}

    @property
    def asked_port(self) -> int:
        """The port for asking whether the server is ready."""
        return next(iter(self.own_ports.values()))

    @property
    def url(self) -> str:
        """The URL of the model in Triton, or of the API of another engine's server."""
        if self.is_triton:
            return f"http://{self.url_host}:{self.ports.http}/v2/models/{self.model_name}"
        return f"http://{self.url_host}:{self.ports.openai}/v1"

    @property
    def api_url(self) -> str | None:
        """The URL of OpenAI's API; None if it is not served."""
        return f"http://{self.url_host}:{self.ports.openai}/v1" if self.ports.openai else None

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics for a client on this machine."""
        port = self.ports.metrics if self.is_triton else self.ports.openai
        return f"http://{self.url_host}:{port}/metrics"

    @property
    def exposure(self) -> str | None:
        """A warning for the user who lets other machines reach it; None if there is none.

        vLLM's key protects only /v1 and similar paths, as its page on security says.
        """
        if not self.is_public or not self.ports.openai:
            return None
        if self.is_triton:
            open_to_all = "everybody who reaches OpenAI's API may use it; --api-keys FILE requires keys"
            return None if self.api_keys else open_to_all
        if self.api_keys:
            return f"{self.software} requires the key only under /v1; its other paths are open"
        keys = "; --api-keys FILE requires a key" if self.kind.key_variable else ""
        return f"everybody who reaches {self.software} may use it{keys}"

    @property
    def software(self) -> str:
        return self.kind.software

    @property
    def addresses(self) -> dict[str, str]:
        """The names and URLs of everything that clients can ask."""
        api = {"OpenAI": self.api_url} if self.api_url else {}
        if not self.is_triton:
            return api
        return {
            "HTTP": f"{self.url}/generate",
            "streams": f"{self.url}/generate_stream",
            **api,
            "gRPC": f"{self.url_host}:{self.ports.grpc}",
            "metrics": self.metrics_url,
        }

    def serve_words(self, url: str | None = None, host: str | None = None) -> tuple[str, ...]:
        """Returns the command that serves OpenAI's API in front of this Triton.

        `url` is that of Triton's HTTP, and `host` where the API listens; the deployment's own if left out.
        """
        url = url or f"http://{self.url_host}:{self.ports.http}"
        words = ["trtspec", "serve", "--url", url, "--tokenizer", str(self.build / "tokenizer")]
        words += ["--model-name", self.model_name, "--host", host or self.host]
        words += ["--port", str(self.ports.openai)]
        words += [word for name in self.allowed_hosts for word in ("--allowed-host", name)]
        words += [word for name in self.card.names for word in ("--served-model-name", name)]
        words += ["--reasoning-parser", self.card.reasoning_parser] if self.card.reasoning_parser else []
        words += [] if self.card.has_own_sampling else ["--generation-config", "none"]
        return (*words, *(("--api-keys", str(self.api_keys.resolve())) if self.api_keys else ()))

    @property
    def example(self) -> str:
        """A command that asks the model."""
        if self.is_triton:
            body = json.dumps({"text_input": "def fib(", "max_tokens": 64, "stream": True})
            return f"curl -sN {self.url}/generate_stream -H 'Content-Type: application/json' -d '{body}'"
        body = json.dumps({"model": self.model_name, "prompt": "def fib(", "max_tokens": 64, "stream": True})
        key = '-H "Authorization: Bearer $KEY" ' if self.api_keys else ""
        return f"curl -sN {self.url}/completions {key}-H 'Content-Type: application/json' -d '{body}'"

    def as_local(self, container: str | None) -> LocalServer:
        """Returns its description for clients on this machine; `container` is the detached one."""
        process = None if container else os.getpid()
        return LocalServer(
            name=container or f"{self.container_name}-{process}",
            build=str(self.build),
            model=self.model_name,
            url=self.url,
            ready=f"http://{self.url_host}:{self.asked_port}{self.kind.ready[-1].format(self.model_name)}",
            metrics=self.metrics_url,
            grpc=f"{self.url_host}:{self.ports.grpc}" if self.is_triton else None,
            openai=self.api_url,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            process=process,
            log=str(self.log),
        )

    def is_ready(self) -> bool:
        """Says whether the server takes requests for the model.

        A server with an API key does not list its models without it, so its readiness is trusted.
        """
        for path in self.kind.ready:
            if self.ask(self.asked_port, path.format(self.model_name))[0] != 200:
                return False
        if self.kind.models is None:
            return True
        status, said = self.ask(self.asked_port, self.kind.models)
        return status == 401 or (status == 200 and self.model_name in _names(said))

    def ask(
        self,
        port: int,
        path: str,
        method: str = "GET",
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        """Returns the status and the body of an answer, without the environment's proxies.

        The status is 0 without an answer within five seconds.
        """
        with closing(http.client.HTTPConnection(self.client_host, port, timeout=5)) as connection:
            try:
                connection.request(method, path, body, headers or {})
                response = connection.getresponse()
                return response.status, response.read().decode(errors="replace")
            except (OSError, http.client.HTTPException):
                return 0, ""


def _names(models: str) -> set[str]:
    try:
        return {model["id"] for model in json.loads(models)["data"]}
    except (ValueError, KeyError):
        return set()
