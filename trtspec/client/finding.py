"""Finds out which API an address has, by asking, and which model it serves.

The ports of a server are those of Triton, one after the other: HTTP, gRPC, metrics; then OpenAI's API, which
is on port 9000 where the first is 8000. So the others are known by one of them, and asked before they are
named.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from yarl import URL

from trtspec.base.errors import UnavailableError
from trtspec.client.endpoint import AskError, Endpoint
from trtspec.client.http import Streams
from trtspec.client.openai import OpenAiEndpoint
from trtspec.client.scrape import read
from trtspec.client.triton import VLLM_INPUT, TritonEndpoint, TritonVllmEndpoint
from trtspec.gateway.ports import HTTP, OPENAI

DEFAULT_MODEL = "speculative_llm"
"""The name of the model in Triton if the caller gives none."""

if TYPE_CHECKING:
    from trtspec.client.grpc import GrpcEndpoint

StreamingEndpoint = OpenAiEndpoint | TritonEndpoint
Spoken = Literal["http", "grpc", "metrics", "openai"]
_PORTS: dict[Spoken, str] = {
    "http": "Triton's HTTP",
    "grpc": "Triton's gRPC",
    "metrics": "Triton's metrics",
    "openai": "OpenAI's API",
}
"""The names of a server's ports, in the order of their numbers."""

GRPC_SCHEME = "grpc"
"""The scheme of an address of Triton's gRPC that need not be asked what it is."""

_BELOW = re.compile(r"/v2(/.*)?$|(?<=/v1)/.*$")
"""What stands behind a server's address in the URL of a page of one of its APIs."""
_LOOK_S = 2.0
_NAME_ONE = "name Triton's HTTP port, or OpenAI's API: --url http://HOST:PORT"


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that was found."""

    endpoint: StreamingEndpoint
    """The way to ask the server."""
    software: str | None
    """The name and version of its software, if it reports them."""
    owner: str | None = None
    """The owner of a model of OpenAI's API, which identifies the kind of server."""
    longest: int | None = None
    """The most tokens of a prompt and its answer, if OpenAI's API reports that (`max_model_len`)."""


async def other_port(url: str, spoken: Spoken, *wanted: Spoken) -> UnavailableError:
    """Returns the error for an address that has another API than those wanted, with the others' ports."""
    others = await _others(_base(url), spoken)
    known = "".join(f"; {_PORTS[one]} is {at.port}" for one, at in others.items())
    better = next((f"--url {others[one]}" for one in wanted if one in others), _NAME_ONE)
    return UnavailableError(shown(url), f"that is {_PORTS[spoken]} port{known}", better)


async def _others(base: URL, spoken: Spoken) -> dict[Spoken, URL]:
    """Returns the addresses of a server's other ports that answer."""
    order = list(_PORTS)
    first = HTTP if (spoken, base.port) == ("openai", OPENAI) else (base.port or 0) - order.index(spoken)
    asked: dict[Spoken, URL] = {}
    for one, port in zip(order, range(first, first + len(order)), strict=True):
        port = OPENAI if (one, first) == ("openai", HTTP) else port
        if one != spoken and 0 < port < 1 << 16:
            asked[one] = base.origin().with_port(port) / ("v1" if one == "openai" else "")
    answers = await asyncio.gather(*(_speaks(url, one) for one, url in asked.items()))
    return {one: url for (one, url), answered in zip(asked.items(), answers, strict=True) if answered}


async def _speaks(url: URL, spoken: Spoken) -> bool:
    """Says whether a port has this API."""
    origin, streams = url.origin(), Streams(_LOOK_S)
    try:
        if spoken == "metrics":
            return bool(await asyncio.wait_for(asyncio.to_thread(read, str(origin)), _LOOK_S))
        if spoken == "grpc":
            from trtspec.client.grpc import is_live

            return await is_live(f"{origin.host}:{origin.port}", _LOOK_S)
        return await streams.get(origin / ("v2" if spoken == "http" else "v1/models")) is not None
    except AskError as error:
        # An API that asks for a key.
        return spoken == "openai" and error.kind == "rejected"
    except (UnavailableError, asyncio.TimeoutError):
        return False
    finally:
        await streams.close()


async def _spoken(base: URL) -> Spoken | None:
    """Returns which of a server's ports an address is; None if nobody answers there."""
    for one in _PORTS:
        if await _speaks(base, one):
            return one
    return None


def check_triton(url: str) -> None:
    """Raises `UnavailableError` for an address that has another API than Triton's HTTP."""

    async def check() -> None:
        if (spoken := await _spoken(_base(url))) not in (None, "http"):
            raise await other_port(url, spoken, "http")

    asyncio.run(check())


def metrics_at(url: str) -> str:
    """Returns the URL of the metrics of the server at an address, which may be any of its ports."""

    async def look() -> str:
        base = _base(url)
        spoken = await _spoken(base) if base.path.rstrip("/") in ("", "/v1") else None
        found = (await _others(base, spoken)).get("metrics") if spoken else None
        return str(found / "metrics") if found else url

    return asyncio.run(look())


def spoken_by(endpoint: Endpoint) -> Spoken:
    """Returns which of a server's ports an endpoint asks."""
    if endpoint.api == "openai":
        return "openai"
    return "http" if isinstance(endpoint, TritonEndpoint) else "grpc"


async def find_any(
    url: str, model: str | None, *, chat: bool, timeout_s: float, key: str | None = None
) -> StreamingEndpoint | GrpcEndpoint:
    """Returns how to ask the model at an address, as `find` does, or by Triton's gRPC."""
    if url.startswith(f"{GRPC_SCHEME}://"):
        address = url.partition("://")[2]
    elif found := await _by_http(base := _base(url), model, chat, timeout_s, key):
        return found.endpoint
    else:
        address = f"{base.host}:{base.port}"
    from trtspec.client.grpc import GrpcEndpoint

    return await GrpcEndpoint.find(address, model or DEFAULT_MODEL, timeout_s)


def _base(url: str) -> URL:
    """Returns an address as a URL: HOST:PORT, or any URL that `deploy` prints.

    Raises `UnavailableError` for what is none.
    """
    try:
        base = URL(url if "://" in url else f"http://{url}")
    except ValueError as error:
        raise UnavailableError(url.rpartition("@")[2], f"is not a URL: {error}") from None
    if base.scheme not in ("http", "https") or not base.host:
        raise UnavailableError(url, "is not a URL", "name one such as http://host:8000")
    path = _BELOW.sub("", base.path)
    return base if path == base.path else base.with_path(path)


async def find(
    url: str, model: str | None, *, chat: bool, timeout_s: float, key: str | None = None
) -> FoundServer:
    """Returns how to ask the model at an address: by Triton's HTTP, or by OpenAI's API.

    Raises `UnavailableError` if nobody answers, the model is not there, it takes no text, or the port has
    another API.
    """
    if found := await _by_http(_base(url), model, chat, timeout_s, key):
        return found
    raise await other_port(url, "grpc", "http", "openai")


async def _by_http(
    base: URL, model: str | None, chat: bool, timeout_s: float, key: str | None
) -> FoundServer | None:
    """Returns how to ask the model; None if the port is Triton's gRPC."""
    if key and base.user:
        problem = "has a user name in it, and an API key is given too"
        raise UnavailableError(shown(str(base)), problem, "leave one of the two out")
    streams = Streams(timeout_s, key)
    try:
        return await _find(base, model, streams, chat)
    except AskError as error:
        await streams.close()
        # What it answers is no HTTP of the version that was asked in.
        if error.kind == "broken_off" and await _speaks(base, "grpc"):
            return None
        hint = "trtspec deploy RECIPE starts a server; --api-key-file names a key"
        raise UnavailableError(shown(str(base)), f"does not answer: {error.problem}", hint) from error
    except BaseException:
        await streams.close()
        raise


async def _find(base: URL, model: str | None, streams: Streams, chat: bool) -> FoundServer:
    if base.path.rstrip("/").endswith("/v1"):
        return await _openai(base, model, streams, chat)
    if server := await streams.get(base / "v2"):
        return await _triton(base, model, streams, server)
    if await streams.get(base / "v1/models"):
        return await _openai(base / "v1", model, streams, chat)
    if await _speaks(base, "metrics"):
        raise await other_port(str(base), "metrics", "http", "openai")
    problem = "has neither Triton's API (/v2) nor OpenAI's (/v1)"
    repair = "name Triton's HTTP port, or a base URL that ends in /v1"
    raise UnavailableError(shown(str(base)), problem, repair)


async def _triton(base: URL, model: str | None, streams: Streams, server: dict[str, Any]) -> FoundServer:
    name, url = model or DEFAULT_MODEL, str(base).rstrip("/")
    metadata = await streams.get(base / "v2/models" / name)
    if metadata is None:
        raise UnavailableError(shown(url), f"has no model {name} that is ready", "name one with --model-name")
    inputs, outputs = (
        frozenset(tensor["name"] for tensor in metadata.get(side, ())) for side in ("inputs", "outputs")
    )
    if "text_input" not in inputs:
        raise UnavailableError(
            shown(url), f"{name} has no input text_input", "name another with --model-name"
        )
    software = f"{server.get('name', 'triton')} {server.get('version', '')}".strip()
    if VLLM_INPUT in inputs:
        return FoundServer(TritonVllmEndpoint(url, name, streams), software)
    return FoundServer(TritonEndpoint(url, name, inputs, outputs, streams), software)


async def _openai(base: URL, model: str | None, streams: Streams, chat: bool) -> FoundServer:
    url = str(base).rstrip("/")
    found = await streams.get(base / "models")
    data = found.get("data") if found else None
    listed = [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []
    models = {each["id"]: each for each in listed if isinstance(each.get("id"), str)}
    if not models:
        raise UnavailableError(shown(url), "has no list of models", "name a base URL that ends in /v1")
    # A model that answers to several names has one `root`, as vLLM calls it.
    if model is None and len({each.get("root", name) for name, each in models.items()}) == 1:
        model = next(iter(models))
    if model is None or model not in models:
        problem = f"has no model {model}" if model else "has several models"
        raise UnavailableError(shown(url), f"{problem}: {', '.join(models)}", "name one with --model-name")
    version = await streams.get(base.parent / "version")
    owner = models[model].get("owned_by")
    software = " ".join(filter(None, (owner, version.get("version") if version else None)))
    endpoint = OpenAiEndpoint(url, model, streams, chat=chat, owner=owner)
    longest = models[model].get("max_model_len")
    known = longest if isinstance(longest, int) else None
    return FoundServer(endpoint, software or None, owner, known)


async def metrics_beside(endpoint: Endpoint) -> str | None:
    """Returns where a server has its metrics: beside OpenAI's API, as vLLM does, or on Triton's own port.

    None if Triton's port is not where it usually is.
    """
    if isinstance(endpoint, OpenAiEndpoint):
        return str(URL(endpoint.url).parent / endpoint.metrics_path)
    found = (await _others(_base(endpoint.url), spoken_by(endpoint))).get("metrics")
    return str(found / "metrics") if found else None


def shown(url: str) -> str:
    """Returns a URL without what may be secret in it: a password, a query."""
    parts = URL(url)
    return str(parts.with_user(None).with_query(None)) if parts.host else url
