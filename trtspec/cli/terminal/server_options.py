"""Options of the commands that measure a server: where it is, what it serves, and the keys that it wants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ServerUrlOption = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="A server: Triton's HTTP, or OpenAI's API ending in /v1."),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        "--baseline", metavar="URL", help="The same model without drafts, if URL has no plain decoding."
    ),
]
ServedModelOption = Annotated[
    str | None,
    typer.Option("--model-name", help="The model to ask.", show_default="speculative_llm, or the only one"),
]
ApiKeyFileOption = Annotated[
    Path | None, typer.Option("--api-key-file", metavar="FILE", help="A file with the API key of URL.")
]
ApiKeyEnvOption = Annotated[
    str | None,
    typer.Option("--api-key-env", metavar="NAME", help="The variable that has the API key of URL."),
]
BaselineApiKeyFileOption = Annotated[
    Path | None,
    typer.Option("--baseline-api-key-file", metavar="FILE", help="A file with the API key of the baseline."),
]
