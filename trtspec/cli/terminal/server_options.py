"""Defines the options of the commands that ask a server: its address, its model and its key."""

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
WaitOption = Annotated[
    float, typer.Option("--wait", min=0, help="Seconds to wait for the server to be ready.")
]
AnswerTimeoutOption = Annotated[
    float,
    typer.Option("--timeout", min=1, help="The most seconds that an answer may take."),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature", min=0, help="Sample at this temperature; 0 is greedy.", show_default="greedy"
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
