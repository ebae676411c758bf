"""`trtspec ci`: engine builds and proofs in a CI system.

`github.yml` builds a matrix. GitHub Docs list the contexts that a key may use: "Contexts reference", table
"Context availability". An action is named by its commit: a tag may be moved to other code. The job `matrix`
assigns before it echoes, so that the step fails if its command fails. Without `queue: max` at most one job
waits, and the next one cancels it.

`gitlab.yml` makes and starts a child pipeline, and forwards the variables of its own. Without that, variables
set by a schedule or a manual run would reach the matrix alone. Source: GitLab Docs, "Downstream pipelines",
section "Dynamic child pipelines", and their troubleshooting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trtspec.backends.table import load, runner_of
from trtspec.base.errors import StoreError, TrtspecError
from trtspec.base.files import write_atomically
from trtspec.cli.terminal.options import ForceOption
from trtspec.cli.terminal.output import out
from trtspec.cluster.comments import DeniedError, thread_here
from trtspec.models.download import find_commit
from trtspec.pipeline.store.store import Entry, Store, platform_of
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.releases import release_of


@dataclass(frozen=True, slots=True)
class CiJob:
    """The build of one recipe."""

    name: str
    recipe: str
    gpu: str
    """The kind of GPU that its runner has."""
    gpus: int
    """The number of these GPUs."""
    release: str
    image: str
    """The image that contains the release."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that its runner is found by: a runner with eight H200 has the label h200x8.

        That runner may have the label h200x1 as well, to take builds for one GPU too.
        """
        return ("self-hosted", "gpu", f"{self.gpu}x{self.gpus}")


def job_of(loaded: LoadedRecipe) -> CiJob | None:
    """Returns the job of a recipe; None for a recipe that any machine can build."""
    recipe = loaded.recipe
    release = runner_of(recipe).engine_release(recipe)
    if release is None:
        return None
    hardware = recipe.hardware
    return CiJob(
        recipe.name, loaded.path.as_posix(), hardware.gpu, hardware.count, release.version, release.pinned
    )


def check_names(loaded: Iterable[LoadedRecipe]) -> None:
    """Raises TrtspecError for two recipes of one name, which would build into one folder."""
    seen: dict[str, Path] = {}
    for one in loaded:
        other = seen.setdefault(one.recipe.name, one.path)
        if other != one.path:
            raise TrtspecError(one.path, f"has the name of {other}: {one.recipe.name}", "rename one of them")


_ALWAYS = [{"when": "on_success"}]
# NVIDIA's image has PyTorch, and may lack ensurepip; its own packages stay as they are.
_INSTALL = (
    "case \"$STORE\" in s3://*) extras='[fp8,s3]' ;; gs://*) extras='[fp8,gcs]' ;; *) extras='[fp8]' ;; esac",
    'case "$TRTSPEC" in *://*) wanted="trtspec$extras @ $TRTSPEC" ;; *) wanted="$TRTSPEC$extras" ;; esac',
    "python3 -m venv --system-site-packages --without-pip .venv",
    'python3 -m pip --python .venv/bin/python install --quiet "$wanted"',
)
# Values from outside are variables of the environment, in quotes where they are used.
_BUILD = (
    "mkdir -p report",
    '.venv/bin/trtspec build "$RECIPE" --output "$OUTPUT" ${STORE:+--store "$STORE"}'
    " --report report/summary.md --report report/junit.xml --report report/build.json",
)
_COLLECT = (
    'if [ -d "$OUTPUT/.trtspec/logs" ]; then cp -r "$OUTPUT/.trtspec/logs" report/; fi',
    'if [ -f "$OUTPUT/manifest.json" ]; then cp "$OUTPUT/manifest.json" report/; fi',
)


def matrix_of(jobs: Iterable[CiJob]) -> dict[str, Any]:
    """Returns the matrix of these jobs, for `strategy.matrix: ${{ fromJSON(...) }}`."""
    return {"include": [{**asdict(job), "runs_on": list(job.labels)} for job in jobs]}


def child_pipeline(jobs: Iterable[CiJob]) -> dict[str, Any]:
    """Returns the pipeline of these jobs.

    GitLab refuses a pipeline without a job. So if there is nothing to build, one job says that. The child of
    a merge request's pipeline has only the jobs with rules.
    """
    pipeline = {f"engine-build {job.name}": _build_job(job) for job in jobs}
    nothing = {"engine-build": {"rules": _ALWAYS, "script": ["echo 'There is nothing to build.'"]}}
    return pipeline or nothing


def _build_job(job: CiJob) -> dict[str, Any]:
    return {
        "stage": "build",
        "rules": _ALWAYS,
        "image": {"name": job.image, "entrypoint": [""]},
        "tags": list(job.labels),
        "timeout": "12 hours",
        "interruptible": False,
        "resource_group": f"engine-build-{job.name}",
        "variables": {
            "RECIPE": job.recipe,
            "OUTPUT": f"/cache/build/{job.name}",
            "HF_HOME": "/cache/huggingface",
            "TRTSPEC_CACHE": "/cache/trtspec",
        },
        "script": [*_INSTALL, *_BUILD],
        "after_script": list(_COLLECT),
        "artifacts": {
            "when": "always",
            "paths": ["report/"],
            "reports": {"junit": "report/junit.xml"},
            "expire_in": "30 days",
        },
    }


Workflow = Literal["build", "prove"]


@dataclass(frozen=True, slots=True)
class CiSystem:
    """A CI system."""

    name: str
    file: Path
    """The place of its workflow in a repository."""
    key: str
    """The setting of the workflow that says where pip finds trtspec."""
    jobs: Callable[[Iterable[CiJob]], dict[str, Any]]
    """Returns what its workflow builds."""

    proofs: Mapping[Path, str]
    """The places of what proves recipes on pull requests, each with the name of its template."""

    @property
    def workflow(self) -> str:
        return _template(f"{self.name}.yml")

    def written(self, kind: Workflow) -> dict[Path, str]:
        """Returns the files of a kind of workflow, each with its text."""
        if kind == "build":
            return {self.file: self.workflow}
        return {file: _template(name) for file, name in self.proofs.items()}


def _template(name: str) -> str:
    return files("trtspec.cluster.ci").joinpath(name).read_text(encoding="utf-8")


GITHUB = CiSystem(
    "github",
    Path(".github/workflows/engine-build.yml"),
    "its input trtspec",
    matrix_of,
    {
        Path(".github/workflows/prove.yml"): "prove-github.yml",
        Path(".github/actions/prove/action.yml"): "action.yml",
    },
)
GITLAB = CiSystem(
    "gitlab",
    Path(".gitlab/engine-build.yml"),
    "its variable TRTSPEC",
    child_pipeline,
    {Path(".gitlab/prove.yml"): "prove-gitlab.yml"},
)
SYSTEMS = {system.name: system for system in (GITHUB, GITLAB)}

HELP = "Engine builds and proofs in GitHub Actions or GitLab CI."
EXAMPLES = (
    "trtspec ci init github",
    "trtspec ci init github prove",
    "trtspec ci matrix recipes/*.yaml",
    "trtspec ci post proof/summary.md",
)

System = Literal["github", "gitlab"]
_HUB_TIMEOUT_S = 10


def init(
    system: Annotated[
        System, typer.Argument(help="The CI system whose workflow is written.", show_default=False)
    ],
    workflow: Annotated[
        Workflow,
        typer.Argument(
            metavar="[build|prove]", help="Build the engines of recipes, or prove a pull request's recipe."
        ),
    ] = "build",
    force: ForceOption = False,
) -> None:
    """Write a workflow into this repository: it builds engines, or proves recipes on pull requests."""
    known = SYSTEMS[system]
    written, words = known.written(workflow), f"{system} prove" if workflow == "prove" else system
    for file in written:
        if file.exists() and not force:
            raise TrtspecError(file, "is there already", f"to replace it: trtspec ci init {words} --force")
    for file, text in written.items():
        write_atomically(file, text)
        out.status(f"wrote {file}")
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


def post(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Markdown, as prove writes it.", show_default=False)
    ],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Replace the comment that was posted under this name.")
    ] = "prove",
) -> None:
    """Post a Markdown file to the pull request that this job is of, in place of the one before.

    On GitHub it needs GITHUB_TOKEN, on GitLab PROVE_TOKEN. A token that may not comment, as that of a fork,
    is a warning.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrtspecError(file, f"cannot be read: {error}", "trtspec prove OLD NEW --output DIR") from None
    try:
        is_replaced = thread_here().post(text, name)
    except DeniedError as error:
        out.warning(f"{error}; nothing was posted")
        return
    out.status("replaced the comment" if is_replaced else "posted a comment")


COMMANDS = (init, matrix, post)


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
