"""Lists the CI systems: the workflow of each, and the jobs that its workflow asks for.

`github.yml` builds a matrix. GitHub Docs list the contexts that a key may use: "Contexts reference", table
"Context availability". An action is named by its commit: a tag may be moved to other code. The job `matrix`
assigns before it echoes, so that the step fails if its command fails. Without `queue: max` at most one job
waits, and the next one cancels it.

`gitlab.yml` makes and starts a child pipeline, and forwards the variables of its own. Without that, variables
set by a schedule or a manual run would reach the matrix alone. Source: GitLab Docs, "Downstream pipelines",
section "Dynamic child pipelines", and their troubleshooting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from trtspec.backends.recipes import runner_of
from trtspec.base.errors import TrtspecError
from trtspec.recipe.loader import LoadedRecipe


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
        recipe.name, loaded.path.as_posix(), hardware.gpu, hardware.count, release.version, release.image
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


def matrix(jobs: Iterable[CiJob]) -> dict[str, Any]:
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

    @property
    def workflow(self) -> str:
        return files("trtspec.cluster.ci").joinpath(f"{self.name}.yml").read_text(encoding="utf-8")


GITHUB = CiSystem("github", Path(".github/workflows/engine-build.yml"), "its input trtspec", matrix)
GITLAB = CiSystem("gitlab", Path(".gitlab/engine-build.yml"), "its variable TRTSPEC", child_pipeline)
SYSTEMS = {system.name: system for system in (GITHUB, GITLAB)}
