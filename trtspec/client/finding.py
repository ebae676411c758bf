"""Finds out which API a URL has, and which model it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from yarl import URL

from trtspec.base.errors import UnavailableError
from trtspec.client.endpoint import AskError, Endpoint
from trtspec.client.http import Streams
from trtspec.client.openai import OpenAiEndpoint
from trtspec.client.triton import VLLM_INPUT, TritonEndpoint, TritonVllmEndpoint

DEFAULT_MODEL = "speculative_llm"
"""The name of the model in Triton if the caller gives none."""

StreamingEndpoint = OpenAiEndpoint | TritonEndpoint


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


async def find(
    url: str, model: str | None, *, chat: bool, timeout_s: float, key: str | None = None
) -> FoundServer:
    """Returns how to ask the model at a URL: Triton's HTTP, or OpenAI's API if the path ends in /v1.

    For a URL without a path, it tries both. Raises `UnavailableError` if nobody answers, the model is not
    there, or it takes no text.
    """
    try:
        base = URL(url)
    except ValueError as error:
        raise UnavailableError(url.rpartition("@")[2], f"is not a URL: {error}") from None
    if base.scheme not in ("http", "https") or not base.host:
        raise UnavailableError(url, "is not a URL", "name one such as http://host:8000")
    if key and base.user:
        problem = "has a user name in it, and an API key is given too"
        raise UnavailableError(shown(url), problem, "leave one of the two out")
    streams = Streams(timeout_s, key)
    try:
        return await _find(base, model, streams, chat)
    except AskError as error:
        await streams.close()
        hint = "trtspec deploy RECIPE starts a server; --api-key-file names a key"
        raise UnavailableError(shown(url), f"does not answer: {error.problem}", hint) from error
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


def metrics_beside(endpoint: Endpoint) -> str | None:
    """Returns where servers of OpenAI's API have their metrics: beside it, as vLLM does."""
    if not isinstance(endpoint, OpenAiEndpoint):
        return None
    return str(URL(endpoint.url).parent / endpoint.metrics_path)


def shown(url: str) -> str:
    """Returns a URL without what may be secret in it: a password, a query."""
    parts = URL(url)
    return str(parts.with_user(None).with_query(None)) if parts.host else url
