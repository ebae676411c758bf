"""Defines the recipe's section for Slurm, by which `trtspec build --on slurm` asks for nodes.

The section changes nothing in what is built.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from trtspec.base.section import Section
from trtspec.recipe.section import Text

WORD = r"^[^\s\x00-\x1f\x7f]+$"
Word = Annotated[str, Field(max_length=256, pattern=WORD)]
# What sbatch takes, but for the bare number of minutes: YAML 1.1 has 4:00:00 for a number too.
TIME = r"^([0-9]+-[0-9]{1,2}(:[0-9]{2}){0,2}|[0-9]+:[0-9]{2}(:[0-9]{2})?)$"
MOUNT = r"^/[^,:\x00-\x1f\x7f]*:/[^,:\x00-\x1f\x7f]*(:[a-z]+)?$"
ANY = "any"

OWN = frozenset(
    {
        *("account", "array", "chdir", "clusters", "comment", "dependency", "error", "export", "gpus"),
        *("gpus-per-node", "help", "hold", "input", "job-name", "kill-on-invalid-dep", "nodes", "ntasks"),
        *("open-mode", "output", "parsable", "partition", "requeue", "test-only", "time", "usage"),
        *("version", "wait", "wrap"),
    }
)
"""The options of sbatch that trtspec sets itself, or whose effect it would not know of."""


def check_option(name: str) -> str:
    """Returns the long name of an option of sbatch; raises ValueError(problem, repair)."""
    if name.startswith("-") or not name.replace("-", "").isalnum() or name != name.lower():
        raise ValueError(f"found {name!r:.80}, which is no long option", "write its name without the dashes")
    if name in OWN:
        raise ValueError(f"trtspec sets --{name} itself", "remove this line")
    return name


Option = Annotated[str, AfterValidator(check_option), WithJsonSchema({"type": "string"})]
Options = dict[Option, bool | int | Text]


class SlurmSection(Section):
    """The options of Slurm jobs.

    Memory and processors follow from the model, unless `options` have `mem`, `cpus-per-task` or their like.
    """

    partition: Word | None = Field(
        default=None,
        description="The partition of all jobs; cpu_partition overrides it for jobs without a GPU.",
    )
    cpu_partition: Word | None = Field(
        default=None, description="The partition of jobs without a GPU, so that they need not wait for one."
    )
    account: Word | None = Field(default=None, description="The account that pays for the time.")
    time: Annotated[str, Field(pattern=TIME)] | None = Field(
        default=None,
        description="The time limit of each job, in quotes: '4:00:00', '1-12:00:00'; if left out, 2 hours or"
        " more, by the size of the model.",
    )
    gpu_type: Word | None = Field(
        default=None,
        description="The cluster's name of the recipe's GPU; if left out, hardware.gpu, or any GPU if the "
        "cluster has no names for them.",
    )
    container_image: Word | None = Field(
        default=None,
        description="An image with the recipe's release and trtspec, in which pyxis runs each job: "
        "registry#name:tag, or the path of a squashfs file.",
    )
    mpi: Word | None = Field(
        default=None,
        description="srun's --mpi for the container: pmix, if its MPI needs that. Without it, the"
        " container is not an MPI rank.",
    )
    container_mounts: list[Annotated[str, Field(pattern=MOUNT)]] = Field(
        default=[],
        description="Further folders of the container, /from:/to, beside those of recipe, builds and store.",
    )
    options: Options = Field(
        default={}, description="Further options of sbatch by their long names: {mem: 64G, exclusive: true}."
    )
    gpu_options: Options = Field(default={}, description="The same, only for jobs with GPUs.")
