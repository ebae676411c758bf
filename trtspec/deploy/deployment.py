"""What is served, and where."""

from __future__ import annotations

import http.client
import re
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.deploy.ports import Ports

_RUNNING = re.compile(r"^trtspec:num_requests_running\{.*\} (\S+)$", re.MULTILINE)


# What a network drive gives, and what a server takes beside the loading.
_SLOW_DISK_B_S, _START_S = 200e6, 300.0


def patience(build: Path) -> float:
    """How long the engines of a build may take to load, in seconds: hundreds of gigabytes take minutes."""
    engines = [file for role in ("target", "draft") for file in (build / role / "engine").iterdir()]
    return _START_S + sum(file.stat().st_size for file in engines) / _SLOW_DISK_B_S


@dataclass(frozen=True, slots=True)
class Deployment:
    """A build directory and the addresses that its Triton listens on.

    `ranks` is how many the engine has that has most, `start_s` how long loading them may take, in seconds.
    """

    name: str
    build: Path
    model_name: str
    ranks: int = 1
    host: str = "127.0.0.1"
    ports: Ports = field(default_factory=Ports)
    start_s: float = _START_S

    @property
    def repository(self) -> Path:
        return self.build / "model_repository"

    @property
    def log(self) -> Path:
        return self.build / "tritonserver.log"

    @property
    def client_host(self) -> str:
        """Where a client on this machine finds the server."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104

    @property
    def url(self) -> str:
        host = f"[{self.client_host}]" if ":" in self.client_host else self.client_host
        return f"http://{host}:{self.ports.http}/v2/models/{self.model_name}"

    def is_ready(self) -> bool:
        """Whether the server takes requests for the model."""
        path = f"/v2/models/{self.model_name}/ready"
        return all(self._get(self.ports.http, url) is not None for url in (path, "/v2/health/ready"))

    def is_idle(self) -> bool:
        """Whether no completion runs, as far as the metrics know; they are told 20 times a second."""
        running = _RUNNING.findall(self._get(self.ports.metrics, "/metrics") or "")
        return not any(float(number) for number in running)

    def _get(self, port: int, path: str) -> str | None:
        """What a 200 brings; proxies of the environment are not asked."""
        with closing(http.client.HTTPConnection(self.client_host, port, timeout=5)) as connection:
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                return response.read().decode(errors="replace") if response.status == 200 else None
            except (OSError, http.client.HTTPException):
                return None
