"""`trtspec ci`: engine builds in a CI system."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from trtspec.base.atomic import write_atomically
from trtspec.base.errors import TrtspecError
from trtspec.cli.terminal.options import ForceOption
from trtspec.cli.terminal.output import out
from trtspec.cluster.ci import github, gitlab
from trtspec.cluster.ci.job import check_names, job_of
from trtspec.cluster.ci.stored import stored_recipes
from trtspec.pipeline.store.store import Store
from trtspec.recipe.loader import load

HELP = "Engine builds in GitHub Actions or GitLab CI."
EXAMPLES = ("trtspec ci init github", "trtspec ci matrix recipes/*.yaml")

System = Literal["github", "gitlab"]


def init(
    system: Annotated[
        System, typer.Argument(help="The CI system whose workflow is written.", show_default=False)
    ],
    force: ForceOption = False,
) -> None:
    """Write the workflow that builds engines, into this repository."""
    file, text = {
        "github": (Path(github.FILE), github.workflow),
        "gitlab": (Path(gitlab.FILE), gitlab.template),
    }[system]
    if file.exists() and not force:
        raise TrtspecError(file, "is there already", f"to replace it: trtspec ci init {system} --force")
    write_atomically(file, text())
    out.status(f"wrote {file}")
    out.hint("its first lines say how to call it, and what a runner needs")
    if not _is_trtspecs(Path()):
        key = {"github": "its input trtspec", "gitlab": "its variable TRTSPEC"}[system]
        out.warning(
            "this repository is not trtspec's, and no package index has trtspec: say in"
            f" {key} where pip finds it, a wheel or a submodule in this repository, or a URL (git+https://…)"
        )


def _is_trtspecs(folder: Path) -> bool:
    """Says whether this is the folder that trtspec is installed from."""
    project = folder / "pyproject.toml"
    text = project.read_text(encoding="utf-8", errors="replace") if project.is_file() else ""
    return re.search(r"""^name\s*=\s*["']trtspec["']""", text, re.MULTILINE) is not None


def matrix(
    recipes: Annotated[
        list[Path], typer.Argument(metavar="RECIPE...", help="The recipes, YAML files.", show_default=False)
    ],
    system: Annotated[
        System, typer.Option("--system", help="The CI system whose jobs are printed.")
    ] = "github",
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="Leave out builds that this store has.")
    ] = None,
) -> None:
    """Print, as JSON, the jobs that build these recipes."""
    import json

    loaded = [load(recipe) for recipe in recipes]
    check_names(loaded)
    made_of = {recipe.path: job_of(recipe) for recipe in loaded}
    wanted = [recipe for recipe in loaded if made_of[recipe.path]]
    stored = stored_recipes(Store(store), wanted, out.warning) if store else set()
    jobs = []
    for recipe in loaded:
        job = made_of[recipe.path]
        if job is None:
            out.status(f"{recipe.path}: {recipe.recipe.backend} backend, nothing to build on a GPU")
        elif recipe.path in stored:
            out.status(f"{recipe.path}: the store has it")
        else:
            jobs.append(job)
    made = github.matrix(jobs) if system == "github" else gitlab.child_pipeline(jobs)
    # One line: GitHub's $GITHUB_OUTPUT takes name=value.
    out.result(json.dumps(made))


COMMANDS = (init, matrix)
