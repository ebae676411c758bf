"""Arguments and options that several commands share, so that they read the same everywhere.

A key comes from a file or a variable, because every user of the machine can read a command line.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtspec.base.environment import without_keys
from trtspec.base.errors import UnavailableError
from trtspec.pipeline.build.report import SUFFIXES
from trtspec.recipe.backends import NAMES

if TYPE_CHECKING:
    AnyBackend = str
else:
    AnyBackend = Literal[NAMES]

_URL = "The address of any server, as in host:8000: its API is found by asking."
ServerUrlOption = Annotated[str | None, typer.Option("--url", metavar="URL", help=_URL)]
RunningUrlOption = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help=_URL, show_default="what deploy serves here"),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        "--baseline", metavar="URL", help="The same model without drafts, if URL has no plain decoding."
    ),
]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait", min=0, help="Seconds to wait for a server; for one that deploy starts, until it is ready."
    ),
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
    """Returns the command line without what may be secret in its URLs and in its quoted commands.

    The options in `without`, each of which takes a value, are left out.
    """
    from trtspec.client.finding import shown

    def plain(word: str) -> str:
        if " " in word:
            return without_keys(word)
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        return option + equals + (shown(value) if "://" in value else value)

    kept, is_value = ["trtspec"], False
    for word in sys.argv[1:]:
        is_left_out = word.partition("=")[0] in without
        if not is_value and not is_left_out:
            kept.append(plain(word))
        is_value = is_left_out and "=" not in word
    return shlex.join(kept)


RecipeArgument = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="The recipe, a YAML file.", show_default=False)
]
DeployedNameArgument = Annotated[
    str | None,
    typer.Argument(help="The server's name, as trtspec deploy status shows it.", show_default="the only one"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for machines.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
OutputOption = Annotated[
    str | None, typer.Option("--output", metavar="DIR", help="The build directory; build/<name> if left out.")
]
BackendOption = Annotated[
    AnyBackend | None, typer.Option("--backend", help="Use this backend instead of the recipe's.")
]
ApiKeysOption = Annotated[
    Path | None,
    typer.Option(
        "--api-keys",
        metavar="FILE",
        help="A file of API keys, one on each line. A client must send one of them.",
    ),
]
AllowedHostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        metavar="NAME",
        help="On 127.0.0.1: a host name to be asked for, whose pages may ask; * is any. May be repeated.",
        show_default=False,
    ),
]
PythonOption = Annotated[
    Path | None,
    typer.Option(
        "--python",
        envvar="TRTSPEC_SERVER_PYTHON",
        metavar="PATH",
        help="The Python that has vLLM, SGLang or TensorRT-LLM installed, if their program is not on PATH.",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what is there already.")]


def _reports(files: list[Path] | None) -> list[Path] | None:
    for file in files or ():
        if file.suffix not in SUFFIXES:
            raise typer.BadParameter(f"{file}: its name must end with {', '.join(SUFFIXES)}")
    return files


ReportOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write a report: .md for people, .xml (JUnit) or .json for machines; may be repeated.",
        callback=_reports,
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="TRTSPEC_STORE",
        metavar="URL",
        help="Take engines from this store, and put new ones there.",
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="The context of the kubeconfig, if not its current one."),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        help="The namespace of the cluster, if not the recipe's or the context's.",
    ),
]
