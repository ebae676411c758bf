"""A job as sbatch takes it: the words of its command line, and the script that it reads; pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trtspec.base.errors import JobError
from trtspec.base.units import GIB
from trtspec.cluster.jobs.job import CPUS, ClusterJob
from trtspec.recipe.slurm import ANY

SBATCH = "sbatch"

_CPU = "cpus-per-task"
# Options of sbatch that ask for the same thing: where the recipe has one, trtspec writes none.
_MEMORIES, _PROCESSORS = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}), frozenset({_CPU, "cpus-per-gpu"})
# Open MPI takes a process with these for a rank that srun has started, and ends it where srun has no PMI
# server for it (its components schizo/slurm and ess/pmi). To import mpi4py is enough, and TensorRT-LLM does.
_OF_RANKS = (
    *("SLURM_STEPID", "SLURM_STEP_ID", "PMI_FD", "PMI_JOBID", "PMI_RANK", "PMI_SIZE"),
    *("PMIX_NAMESPACE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


def words(job: ClusterJob, after: Sequence[str]) -> tuple[str, ...]:
    """Returns the words that follow `sbatch`; the job begins when those with the ids `after` have succeeded.

    Two jobs of one name and user run one behind the other: the second finds in the store what the first has
    left. Options stand on the command line, where they win over SBATCH_… of the environment.
    """
    order = [*([":".join(("afterok", *after))] if after else []), "singleton"]
    return (
        "--parsable",
        f"--job-name={job.name}",
        f"--comment={job.title}",
        *("--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append", "--export=ALL", "--chdir=/"),
        f"--output={_pattern(job.log)}",
        f"--dependency={','.join(order)}",
        "--kill-on-invalid-dep=yes",
        *_asked(job),
    )


def script(job: ClusterJob, python: str, caches: Mapping[str, Path]) -> str:
    """Returns the script of a job, in which `python` runs trtspec where the recipe names no container.

    `caches` are folders by the variables that name them. A container runs in a step of one rank, which is no
    rank of MPI's unless the recipe names srun's kind of MPI.
    """
    section, cpus = job.recipe.slurm, _options(job).get(_CPU)
    if section.container_image is None:
        return _shell((python, "-m", "trtspec", *job.arguments))
    folders = dict.fromkeys((*job.folders, *caches.values()))
    for folder in folders:
        if "," in str(folder) or ":" in str(folder):
            raise JobError(folder, "cannot be mounted by pyxis, whose lists have commas and colons")
    mounts = (*(f"{folder}:{folder}" for folder in folders), *section.container_mounts)
    return _shell(
        (
            *("srun", f"--mpi={section.mpi or 'none'}"),
            # A step does not inherit it, since Slurm 22.05, and would be bound to one processor.
            *([f"--{_CPU}={cpus}"] if cpus else []),
            f"--container-image={section.container_image}",
            f"--container-mounts={','.join(mounts)}",
            *("env", *(f"--unset={name}" for name in (() if section.mpi else _OF_RANKS))),
            # The container's own home is another one.
            *(f"{name}={folder}" for name, folder in caches.items()),
            *("trtspec", *job.arguments),
        )
    )


def _asked(job: ClusterJob) -> Iterator[str]:
    section = job.recipe.slurm
    partition = section.partition if job.gpus else section.cpu_partition or section.partition
    named = {"partition": partition, "account": section.account, "time": section.time or f"{job.hours}:00:00"}
    yield from (f"--{name}={value}" for name, value in named.items() if value is not None)
    if job.gpus:
        kind = section.gpu_type or job.recipe.hardware.gpu
        yield f"--gpus-per-node={job.gpus}" if kind == ANY else f"--gpus-per-node={kind}:{job.gpus}"
    for name, value in _options(job).items():
        if value is True:
            yield f"--{name}"
        elif value is not False:
            yield f"--{name}={value}"


def _options(job: ClusterJob) -> dict[str, bool | int | str]:
    """Returns further options of sbatch: the recipe's, and what the job needs where the recipe has none."""
    section = job.recipe.slurm
    given = section.options | (section.gpu_options if job.gpus else {})
    memory = {} if given.keys() & _MEMORIES else {"mem": f"{math.ceil(job.memory / GIB)}G"}
    cpus = {} if given.keys() & _PROCESSORS else {_CPU: CPUS}
    return {**memory, **cpus, **given}


def _pattern(file: Path) -> str:
    """Returns a file's name as `--output` wants it, where % begins a pattern."""
    return str(file).replace("%", "%%")


def _shell(argv: Sequence[str]) -> str:
    # By exec, Slurm's signals reach trtspec and its exit status is the job's.
    return f"#!/bin/sh\nexec {shlex.join(argv)}\n"
