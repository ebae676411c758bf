"""A job as sbatch takes it: the words of its command line, and the script that it reads; pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trtspec.errors import JobError
from trtspec.jobs.job import Job
from trtspec.recipe.slurm import ANY, Slurm

SBATCH = "sbatch"


def words(job: Job, after: Sequence[str]) -> tuple[str, ...]:
    """Returns the words that follow `sbatch`; the job begins when those with the ids `after` have succeeded.

    Two jobs of one name and user run one behind the other: the second finds in the store what the first has
    left. Options stand on the command line, where they win over SBATCH_… of the environment.
    """
    section = job.recipe.slurm
    order = [*([":".join(("afterok", *after))] if after else []), "singleton"]
    return (
        "--parsable",
        f"--job-name={job.name}",
        f"--comment={job.title}",
        *("--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append", "--export=ALL", "--chdir=/"),
        f"--output={_pattern(job.log)}",
        f"--dependency={','.join(order)}",
        "--kill-on-invalid-dep=yes",
        *_asked(job, section),
    )


def script(job: Job, python: str, caches: Mapping[str, Path]) -> str:
    """Returns the script of a job, in which `python` runs trtspec where the recipe names no container.

    `caches` are folders by the variables that name them.
    """
    section = job.recipe.slurm
    if section.container_image is None:
        return _shell((python, "-m", "trtspec", *job.arguments))
    folders = dict.fromkeys((*job.folders, *caches.values()))
    for folder in folders:
        if "," in str(folder) or ":" in str(folder):
            raise JobError(folder, "cannot be mounted by pyxis, whose lists have commas and colons")
    mounts = (*(f"{folder}:{folder}" for folder in folders), *section.container_mounts)
    return _shell(
        (
            "srun",
            f"--container-image={section.container_image}",
            f"--container-mounts={','.join(mounts)}",
            # The container's own home is another one.
            *("env", *(f"{name}={folder}" for name, folder in caches.items())),
            *("trtspec", *job.arguments),
        )
    )


def _asked(job: Job, section: Slurm) -> Iterator[str]:
    partition = section.partition if job.gpus else section.cpu_partition or section.partition
    named = {"partition": partition, "account": section.account, "time": section.time}
    yield from (f"--{name}={value}" for name, value in named.items() if value is not None)
    if job.gpus:
        kind = section.gpu_type or job.recipe.hardware.gpu
        yield f"--gpus-per-node={job.gpus}" if kind == ANY else f"--gpus-per-node={kind}:{job.gpus}"
    for name, value in (section.options | (section.gpu_options if job.gpus else {})).items():
        if value is True:
            yield f"--{name}"
        elif value is not False:
            yield f"--{name}={value}"


def _pattern(file: Path) -> str:
    """Returns a file's name as `--output` wants it, where % begins a pattern."""
    return str(file).replace("%", "%%")


def _shell(argv: Sequence[str]) -> str:
    # By exec, Slurm's signals reach trtspec and its exit status is the job's.
    return f"#!/bin/sh\nexec {shlex.join(argv)}\n"
