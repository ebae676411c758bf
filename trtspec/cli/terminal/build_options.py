"""Defines the options of `trtspec build`, here and in the jobs of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from trtspec.base.roles import Role
from trtspec.cli.terminal.options import (
    BackendOption,
    ContextOption,
    DryRunOption,
    JsonOption,
    NamespaceOption,
    OutputOption,
    ReportOption,
    StoreOption,
)


@dataclass(frozen=True, slots=True)
class BuildCommandOptions:
    """The options of `trtspec build`."""

    recipes: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECIPE...", help="The recipe, a YAML file; several with --on.", show_default=False
        ),
    ]
    output: OutputOption = None
    backend: BackendOption = None
    container: Annotated[
        bool, typer.Option("--container", help="Build the engines in NVIDIA's image, with docker or podman.")
    ] = False
    only: Annotated[
        Role | None, typer.Option("--only", help="Make this engine alone, and no model repository.")
    ] = None
    until: Annotated[
        Literal["fetch", "calibrate", "convert", "build"],
        typer.Option("--until", help="With --only: stop after this stage; a later call continues there."),
    ] = "build"
    store: StoreOption = None
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Fail unless stores know the build by this key."),
    ] = None
    on: Annotated[
        Literal["slurm", "kubernetes"] | None,
        typer.Option("--on", help="Build what the store lacks in jobs of this cluster."),
    ] = None
    on_interrupt: Annotated[
        Literal["leave", "cancel"],
        typer.Option("--on-interrupt", help="With --on: leave or cancel the jobs on Ctrl-C."),
    ] = "leave"
    context: ContextOption = None
    namespace: NamespaceOption = None
    dry_run: DryRunOption = False
    report: ReportOption = None
    json: JsonOption = False
