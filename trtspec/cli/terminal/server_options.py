"""Defines the options of the commands that ask a server: its address, its model and its key.

A key comes from a file or a variable, because every user of the machine can read a command line.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from trtspec.base.errors import UnavailableError

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
    float, typer.Option("--timeout", min=1, help="The most seconds that an answer may take.")
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


def read_key(file: Path | None, variable: str | None = None) -> str | None:
    """Returns the key in the variable, or else in the file; None if neither is named.

    Raises `UnavailableError` where there is none.
    """
    if variable is not None:
        if not (found := os.environ.get(variable)):
            raise UnavailableError(variable, "is not set in the environment", "export it, or --api-key-file")
        return found
    if file is None:
        return None
    try:
        lines = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UnavailableError(file, f"cannot be read: {error}") from None
    if not lines:
        raise UnavailableError(file, "has no API key", "write the key as its first line")
    return lines[0]


def typed(without: Collection[str] = ()) -> str:
    """Returns the command line without what may be secret in its URLs.

    The options in `without`, each of which takes a value, are left out.
    """
    from trtspec.client.finding import shown

    def plain(word: str) -> str:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        return option + equals + (shown(value) if "://" in value else value)

    kept, is_value = ["trtspec"], False
    for word in sys.argv[1:]:
        is_left_out = word.partition("=")[0] in without
        if not is_value and not is_left_out:
            kept.append(plain(word))
        is_value = is_left_out and "=" not in word
    return shlex.join(kept)
