"""`trtspec ci`: engine builds in a CI system."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from trtspec.backends.recipes import load
from trtspec.base.atomic import write_atomically
from trtspec.base.errors import StoreError, TrtspecError
from trtspec.cli.terminal.options import ForceOption
from trtspec.cli.terminal.output import out
from trtspec.cluster.ci.systems import SYSTEMS, check_names, job_of
from trtspec.models.download import find_commit
from trtspec.pipeline.store.entry import Entry, platform_of
from trtspec.pipeline.store.store import Store
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.releases import release_of

HELP = "Engine builds in GitHub Actions or GitLab CI."
EXAMPLES = ("trtspec ci init github", "trtspec ci matrix recipes/*.yaml")

System = Literal["github", "gitlab"]
_HUB_TIMEOUT_S = 10


def init(
    system: Annotated[
        System, typer.Argument(help="The CI system whose workflow is written.", show_default=False)
    ],
    force: ForceOption = False,
) -> None:
    """Write the workflow that builds engines, into this repository."""
    known = SYSTEMS[system]
    if known.file.exists() and not force:
        raise TrtspecError(known.file, "is there already", f"to replace it: trtspec ci init {system} --force")
    write_atomically(known.file, known.workflow)
    out.status(f"wrote {known.file}")
    out.hint("its first lines say how to call it, and what a runner needs")
    if not _is_trtspecs(Path()):
        out.warning(
            "this repository is not trtspec's, and no package index has trtspec: say in"
            f" {known.key} where pip finds it, a wheel or a submodule in this repository, or a URL (git+https://…)"
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
    stored = _stored(Store(store), wanted) if store else set()
    jobs = []
    for recipe in loaded:
        job = made_of[recipe.path]
        if job is None:
            out.status(f"{recipe.path}: {recipe.recipe.backend} backend, nothing to build on a GPU")
        elif recipe.path in stored:
            out.status(f"{recipe.path}: the store has it")
        else:
            jobs.append(job)
    # One line: GitHub's $GITHUB_OUTPUT takes name=value.
    out.result(json.dumps(SYSTEMS[system].jobs(jobs)))


COMMANDS = (init, matrix)


def _stored(store: Store, recipes: Iterable[LoadedRecipe]) -> set[Path]:
    """Returns the files of the recipes whose builds the store has.

    A recipe that cannot be looked up is left out with a warning. If this machine may not read the store, all
    recipes are: the caller need not have the rights of the builds. The build asks the store again. No weights
    of models are downloaded.
    """
    found = set[Path]()
    try:
        entries = store.entries()
    except StoreError as error:
        out.warning(f"{error}; the builds will ask the store")
        return found
    for loaded in recipes:
        try:
            if _has_pair(entries, loaded, _commits(loaded)):
                found.add(loaded.path)
        except TrtspecError as error:
            out.warning(f"{loaded.path}: {error}; the build will ask the store")
    return found


def _has_pair(entries: Iterable[Entry], loaded: LoadedRecipe, commits: Mapping[str, str]) -> bool:
    """Says whether there is a build of this recipe, for its GPU and release, from these commits of models.

    `commits` has the commit of each model of the Hub, by its role. A model in a folder has no commit, so its
    build is not found here. The job finds it in the store.
    """
    recipe = loaded.recipe
    platform = platform_of(recipe.hardware.gpu, release_of(recipe.engine.release))
    return any(
        entry.role == "pair"
        and entry.platform == platform
        and entry.manifest["recipe"] == loaded.digest
        and {role: model["revision"] for role, model in entry.manifest["models"].items()} == commits
        for entry in entries
    )


def _commits(loaded: LoadedRecipe) -> dict[str, str]:
    return {
        role: find_commit(location, loaded.recipe.models[role].revision, _HUB_TIMEOUT_S)
        for role, location in loaded.locations.items()
        if isinstance(location, str)
    }
