"""Arguments and options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtspec.pipeline.build.report import SUFFIXES
from trtspec.recipe.backends import NAMES

if TYPE_CHECKING:
    AnyBackend = str
else:
    AnyBackend = Literal[NAMES]
RecipeArgument = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="The recipe, a YAML file.", show_default=False)
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
    typer.Option("--store", metavar="URL", help="Take engines from this store, and put new ones there."),
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
