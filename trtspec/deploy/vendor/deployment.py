"""A deployment of somebody else's server: vLLM's, SGLang's, trtllm-serve."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtspec.backends.backend import Backend
from trtspec.backends.table import backend_named
from trtspec.deploy.deployment import GRACE_S
from trtspec.gateway.addresses import LOOPBACK, client_host, in_url, is_loopback
from trtspec.gateway.ports import OPENAI


@dataclass(frozen=True, slots=True)
class VendorDeployment:
    """A build directory with a launch configuration, and the address that its server listens on."""

    name: str
    build: Path
    backend: str
    """The backend whose server it is."""
    model_name: str
    host: str = LOOPBACK
    port: int = OPENAI
    start_s: float = 1800.0
    """The seconds that the server has to be ready."""
    grace_s: float = GRACE_S
    """The seconds that requests in flight have to end in."""
    key: str | None = field(default=None, repr=False)
    """Opens the server's API. Without a key the API is open."""
    is_plain: bool = False
    """The server is started without drafts."""
    json_logs: bool = False
    logs: Path | None = None
    """The folder of the log; it is in the build if this is None."""

    @property
    def manners(self) -> Backend:
        return backend_named(self.backend)

    @property
    def container_name(self) -> str:
        """The name of its container; a server without drafts can run beside one with them."""
        return f"{self.name}{'-plain' * self.is_plain}"

    @property
    def log(self) -> Path:
        return (self.logs or self.build) / f"{self.backend}{'-plain' * self.is_plain}.log"

    @property
    def all_logs(self) -> dict[str, Path]:
        """The logs by who writes them."""
        return {self.backend: self.log}

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
        """The URL of its API, which is OpenAI's."""
        return f"http://{in_url(self.client_host)}:{self.port}/v1"

    @property
    def api_url(self) -> str:
        return self.url

    @property
    def exposure(self) -> str | None:
        """A warning for the user who lets other machines reach it; None if there is nothing to say.

        vLLM's key guards /v1 and its like, as its page on security says.
        """
        if not self.is_public:
            return None
        if self.key:
            return f"{self.software} asks for the key under /v1 alone; what else it serves is open"
        keys = "; --api-keys FILE asks for a key" if self.manners.key_variable else ""
        return f"whoever reaches {self.software} may use it{keys}"

    @property
    def software(self) -> str:
        return self.manners.title

    @property
    def addresses(self) -> dict[str, str]:
        """The names and URLs of everything that clients can ask."""
        return {"OpenAI": self.url}

    @property
    def example(self) -> str:
        """A command that asks the model."""
        body = {"model": self.model_name, "prompt": "def fib(", "max_tokens": 64, "stream": True}
        kind = "-H 'Content-Type: application/json'"
        key = '-H "Authorization: Bearer $KEY" ' if self.key else ""
        return f"curl -sN {self.url}/completions {key}{kind} -d '{json.dumps(body)}'"

    @property
    def secrets(self) -> dict[str, str]:
        """The variables of the server that nobody else is to see."""
        variable = self.manners.key_variable
        return {variable: self.key} if self.key and variable else {}

    def is_ready(self) -> bool:
        """Says whether the server is well and serves the model by its name.

        One that asks for an API key tells its models to nobody else, and is taken at its word.
        """
        with closing(http.client.HTTPConnection(self.client_host, self.port, timeout=5)) as connection:
            try:
                status, _ = _get(connection, "/health")
                asked, told = _get(connection, "/v1/models") if status == 200 else (status, b"")
                return asked == 401 or (asked == 200 and self.model_name in _names(json.loads(told)))
            except (OSError, http.client.HTTPException, ValueError, KeyError):
                return False


def _get(connection: http.client.HTTPConnection, path: str) -> tuple[int, bytes]:
    """Returns the status and the body of an answer; asks no proxies of the environment."""
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read()


def _names(models: dict[str, Any]) -> set[str]:
    return {model["id"] for model in models["data"]}
