"""GitHub Actions: the matrix of a job, and the workflow that builds it.

Which contexts a key may use: GitHub Docs, "Contexts reference", table "Context availability".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from trtspec.ci import shell
from trtspec.ci.job import Job
from trtspec.ci.workflow_yaml import to_yaml

FILE = ".github/workflows/engine-build.yml"


@dataclass(frozen=True, slots=True)
class Action:
    """An action by its commit: a tag may be moved to other code, a commit cannot."""

    name: str
    commit: str
    version: str

    @property
    def uses(self) -> str:
        return f"{self.name}@{self.commit}"


CHECKOUT = Action("actions/checkout", "11bd71901bbe5b1630ceea73d27597364c9af683", "v4.2.2")
UPLOAD = Action("actions/upload-artifact", "ea165f8d65b6e75b540449e92b4886f43607fa02", "v4.6.2")

_COMMENT = """\
Builds the engines of recipes on self-hosted GPU runners, one job a recipe.
Written by `trtspec ci init github`; change it there, or keep your changes in the workflow that calls it:

  jobs:
    engines:
      uses: ./.github/workflows/engine-build.yml
      with: {recipes: recipes/*.yaml}
      secrets: {HF_TOKEN: "${{ secrets.HF_TOKEN }}"}

A runner has docker, NVIDIA's container toolkit and the labels self-hosted, gpu and h200x1 (h100x2, h200x8):
the recipe's GPU and its count. In `cache` it keeps models, timing caches and builds, so that a build that
broke off goes on where it was, and one that is done takes seconds. What `store` has is not built again, and
what is new is put there, with the rights that the runners have of their own. Call it for branches that you
trust, not for pull requests from forks: they would choose what your machine installs. Builds of a recipe
wait for each other; where an Enterprise Server does not know `queue` yet, remove it: one waits then."""


def matrix(jobs: Iterable[Job]) -> dict[str, Any]:
    """Returns the matrix of these jobs, for `strategy.matrix: ${{ fromJSON(...) }}`."""
    return {"include": [{**asdict(job), "runs_on": list(job.labels)} for job in jobs]}


def workflow() -> str:
    """Returns the text of `FILE`."""
    inputs = _inputs()
    document = {
        "name": "engine-build",
        "on": {
            "workflow_call": {
                "inputs": inputs,
                "secrets": {"HF_TOKEN": {"description": "Reads gated models.", "required": False}},
            },
            "workflow_dispatch": {"inputs": inputs},
        },
        "permissions": {"contents": "read"},
        "jobs": {"matrix": _matrix_job(), "build": _build_job()},
    }
    text = to_yaml(document, _COMMENT)
    for action in (CHECKOUT, UPLOAD):
        text = text.replace(action.uses, f"{action.uses}  # {action.version}")
    return text


def _inputs() -> dict[str, Any]:
    return {
        "recipes": _input("Recipes, with wildcards.", "recipes/*.yaml"),
        "trtspec": _input("What pip installs; a dot for this repository.", shell.requirement()),
        "store": _input("URL of the store of engines; for S3, trtspec has to be trtspec[s3].", ""),
        "cache": _input("Folder of the runner for models and builds.", "/var/cache/trtspec"),
        "timeout_minutes": _input("The longest build.", 720),
    }


def _input(description: str, default: str | int) -> dict[str, Any]:
    kind = "number" if isinstance(default, int) else "string"
    return {"description": description, "type": kind, "default": default}


def _matrix_job() -> dict[str, Any]:
    command = shell.MATRIX.format(system="github")
    return {
        "runs-on": "ubuntu-latest",
        "timeout-minutes": 15,
        "outputs": {"matrix": "${{ steps.matrix.outputs.matrix }}"},
        "steps": [
            _checkout(),
            _install(shell.INSTALL),
            {
                "name": "What is to be built",
                "id": "matrix",
                "env": {"RECIPES": "${{ inputs.recipes }}", "STORE": "${{ inputs.store }}"},
                # A separate assignment fails with the command; inside echo the failure would be lost.
                "run": _script(f"matrix=$({command})", 'echo "matrix=$matrix" >> "$GITHUB_OUTPUT"'),
            },
        ],
    }


def _build_job() -> dict[str, Any]:
    summary = f"{shell.REPORT}/summary.md"
    return {
        "needs": "matrix",
        "if": "${{ toJSON(fromJSON(needs.matrix.outputs.matrix).include) != '[]' }}",
        "name": "${{ matrix.name }}",
        "strategy": {"fail-fast": False, "matrix": "${{ fromJSON(needs.matrix.outputs.matrix) }}"},
        "runs-on": "${{ matrix.runs_on }}",
        "container": {
            "image": "${{ matrix.image }}",
            "volumes": ["${{ inputs.cache }}:/cache"],
            "options": "--gpus all --ipc host --ulimit memlock=-1 --ulimit stack=67108864",
        },
        "timeout-minutes": "${{ inputs.timeout_minutes }}",
        # Without a queue one job waits at most, and another one cancels it.
        "concurrency": {
            "group": "engine-build-${{ matrix.name }}",
            "cancel-in-progress": False,
            "queue": "max",
        },
        "defaults": {"run": {"shell": "bash"}},
        "env": {
            "HF_HOME": "/cache/huggingface",
            "TRTSPEC_CACHE": "/cache/trtspec",
            "OUTPUT": "/cache/build/${{ matrix.name }}",
        },
        "steps": [
            _checkout(),
            _install(shell.INSTALL_TO_BUILD),
            {
                "name": "Build",
                "env": {
                    "HF_TOKEN": "${{ secrets.HF_TOKEN }}",
                    "RECIPE": "${{ matrix.recipe }}",
                    "STORE": "${{ inputs.store }}",
                },
                "run": _script(*shell.BUILD),
            },
            {
                "name": "Report",
                "if": "${{ !cancelled() }}",
                "run": _script(
                    *shell.COLLECT,
                    f'if [ -f {summary} ]; then cat {summary} >> "$GITHUB_STEP_SUMMARY"; fi',
                ),
            },
            {
                "if": "${{ !cancelled() }}",
                "uses": UPLOAD.uses,
                "with": {"name": "engine-build-${{ matrix.name }}", "path": f"{shell.REPORT}/"},
            },
        ],
    }


def _checkout() -> dict[str, Any]:
    return {"uses": CHECKOUT.uses, "with": {"persist-credentials": False}}


def _install(lines: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": "Install trtspec",
        "env": {"TRTSPEC": "${{ inputs.trtspec }}"},
        "run": _script(*lines),
    }


def _script(*lines: str) -> str:
    return "\n".join(lines) + "\n"
