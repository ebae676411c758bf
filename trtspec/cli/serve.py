"""`trtspec serve`: OpenAI's API in front of a running server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import typer

from trtspec.base.errors import ModelError, UnavailableError
from trtspec.base.process_limits import check_open_files
from trtspec.cli.terminal.options import AllowedHostOption, ApiKeysOption
from trtspec.cli.terminal.output import out
from trtspec.client.scrape import read
from trtspec.gateway.openai.settings import ApiSettings, ModelCard
from trtspec.gateway.origins import Origins
from trtspec.gateway.ports import LOOPBACK, OPENAI, in_url, is_loopback, listen
from trtspec.recipe.section import ReasoningParser
from trtspec.serving.errors import TokenizerError

EXAMPLES = (
    "trtspec serve --url http://host:8000 --tokenizer build/llama/tokenizer",
    "trtspec serve --url http://host:8000 --host 0.0.0.0 --api-keys keys.txt",
)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `trtspec serve`."""

    url: Annotated[str, typer.Option(metavar="URL", help="The address of a Triton's HTTP, as in host:8000.")]
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The model's tokenizer, for chats and log-probabilities.", show_default="none"
        ),
    ] = None
    model_name: Annotated[str, typer.Option(help="The recipe's serving.model_name.")] = "speculative_llm"
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of OpenAI's API.")] = OPENAI
    allowed_host: AllowedHostOption = None
    api_keys: ApiKeysOption = None
    max_requests: Annotated[
        int, typer.Option(min=1, help="Answer at most this many prompts at once; more get status 429.")
    ] = 1024
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="A name to answer to; repeat it for more.", show_default="--model-name"),
    ] = None
    reasoning_parser: Annotated[
        ReasoningParser | None,
        typer.Option(help="The recipe's serving.reasoning_parser.", show_default="by the template"),
    ] = None
    generation_config: Annotated[
        Literal["auto", "none"], typer.Option(help="The recipe's serving.generation_config.")
    ] = "auto"


def serve(options: ServeOptions) -> None:
    """Serve OpenAI's API in front of a Triton elsewhere.

    The Triton must serve a model of trtspec. Serve runs until Ctrl-C or SIGTERM. The folder of the tokenizer
    is in the build directory. Without it there is no chat template, and the API answers prompts but no chats.
    """
    from trtspec.client.finding import check_triton
    from trtspec.gateway.openai import server

    if "://" not in options.url:
        options = replace(options, url=f"http://{options.url}")
    _check(options)
    check_open_files()
    names, has_defaults = tuple(options.served_model_name or ()), options.generation_config == "auto"
    card = ModelCard(names, options.reasoning_parser, has_defaults)
    most, origins = options.max_requests, Origins(options.host, tuple(options.allowed_host or ()))
    settings = ApiSettings(
        options.model_name, options.url, options.tokenizer, options.api_keys, most, card, origins
    )
    try:
        texts, loaded_keys = server.load(settings)
    except TokenizerError as error:
        raise ModelError(error.path, error.problem, "name the folder tokenizer of a build") from None
    listener = listen(options.host, options.port)
    try:
        read(f"{options.url.rstrip('/')}/v2/models/{options.model_name}/ready")
    except UnavailableError as error:
        check_triton(options.url)
        out.warning(f"{error}; requests fail until the model is ready there")
    out.status(f"in front of {options.model_name} at {options.url}; Ctrl-C stops it")
    out.result(f"OpenAI   http://{in_url(options.host)}:{options.port}/v1")
    server.serve(listener, settings, texts, loaded_keys)
    out.status("stopped")


def _check(options: ServeOptions) -> None:
    """Refuses an invalid URL and a file without keys; warns of an API that is open to others."""
    from trtspec.gateway.openai.keys import check_keys

    if not _is_url(options.url):
        raise typer.BadParameter("a URL such as http://host:8000", param_hint="--url")
    if options.api_keys is not None:
        check_keys(options.api_keys)
    elif not is_loopback(options.host):
        out.warning("everybody who reaches OpenAI's API may use it; --api-keys FILE requires keys")


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
