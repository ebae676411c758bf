"""Writes the child pipeline that builds in GitLab CI, and `gitlab.yml`, the template that makes and starts
it.

The template forwards the variables of its pipeline. Without that, variables set by a schedule or a manual run
would reach the matrix alone. Source: GitLab Docs, "Downstream pipelines", section "Dynamic child pipelines",
and their troubleshooting.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from trtspec.cluster.ci.job import CiJob

FILE = ".gitlab/engine-build.yml"
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


def child_pipeline(jobs: Iterable[CiJob]) -> dict[str, Any]:
    """Returns the pipeline of these jobs.

    GitLab refuses a pipeline without a job. So if there is nothing to build, one job says that. The child of
    a merge request's pipeline has only the jobs with rules.
    """
    pipeline = {f"engine-build {job.name}": _build_job(job) for job in jobs}
    nothing = {"engine-build": {"rules": _ALWAYS, "script": ["echo 'There is nothing to build.'"]}}
    return pipeline or nothing


def template() -> str:
    """Returns the text of `FILE`."""
    return files("trtspec.cluster.ci").joinpath("gitlab.yml").read_text(encoding="utf-8")


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
