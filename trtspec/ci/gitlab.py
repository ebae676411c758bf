"""GitLab CI: the child pipeline that builds, and the template that makes and starts it.

Source: GitLab Docs, "Downstream pipelines", section "Dynamic child pipelines", and their troubleshooting.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trtspec.ci import shell
from trtspec.ci.job import Job
from trtspec.ci.workflow_yaml import to_yaml

FILE = ".gitlab/engine-build.yml"
# GitLab includes only files whose names end with .yml or .yaml; JSON is YAML.
_CHILD = "engine-build-jobs.yml"
_ALWAYS = [{"when": "on_success"}]

_COMMENT = """\
Builds the engines of recipes on GPU runners, one job a recipe, in a child pipeline.
Written by `trtspec ci init gitlab`; change it there, or set its variables where you include it:

  include: .gitlab/engine-build.yml
  variables: {RECIPES: recipes/*.yaml}

A runner has the docker executor with gpus = "all", shm_size and the tags self-hosted, gpu and h200x1 (h100x2,
h200x8): the recipe's GPU and its count. In its volume /cache it keeps models, timing caches and builds, so
that a build that broke off goes on where it was. What the store of the URL STORE has is not built again; for
S3, TRTSPEC has to be trtspec[s3]. For gated models, make HF_TOKEN a masked CI/CD variable."""


def child_pipeline(jobs: Iterable[Job]) -> dict[str, Any]:
    """Returns the pipeline of these jobs.

    GitLab refuses a pipeline without a job, so where there is nothing to build, a job says that. In the child
    of a merge request's pipeline are only jobs with rules.
    """
    pipeline = {f"engine-build {job.name}": _build_job(job) for job in jobs}
    nothing = {"engine-build": {"rules": _ALWAYS, "script": ["echo 'There is nothing to build.'"]}}
    return pipeline or nothing


def template() -> str:
    """Returns the text of `FILE`."""
    document = {
        "variables": {"RECIPES": "recipes/*.yaml", "TRTSPEC": shell.requirement(), "STORE": ""},
        "engine-matrix": {
            "stage": "build",
            "image": "python:3.12",
            "timeout": "15 minutes",
            "script": [*shell.INSTALL, f"{shell.MATRIX.format(system='gitlab')} > {_CHILD}"],
            "artifacts": {"paths": [_CHILD], "expire_in": "1 week"},
        },
        "engine-build": {
            "stage": "build",
            "needs": ["engine-matrix"],
            "trigger": {
                "include": [{"artifact": _CHILD, "job": "engine-matrix"}],
                "strategy": "depend",
                # What a schedule sets, or who runs the pipeline by hand, would be for the matrix alone.
                "forward": {"pipeline_variables": True},
            },
        },
    }
    return to_yaml(document, _COMMENT)


def _build_job(job: Job) -> dict[str, Any]:
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
        "script": [*shell.INSTALL_TO_BUILD, *shell.BUILD],
        "after_script": list(shell.COLLECT),
        "artifacts": {
            "when": "always",
            "paths": [f"{shell.REPORT}/"],
            "reports": {"junit": f"{shell.REPORT}/junit.xml"},
            "expire_in": "30 days",
        },
    }
