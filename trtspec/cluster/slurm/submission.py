"""Makes sbatch's input for a job: the arguments of its command line, and the script; pure."""

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
# Options of sbatch that request the same thing: if the recipe has one, trtspec adds none.
_MEMORIES, _PROCESSORS = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}), frozenset({_CPU, "cpus-per-gpu"})
# Open MPI takes a process with these variables for a rank started by srun, and ends it if srun has no PMI
# server for it (its components schizo/slurm and ess/pmi). Importing mpi4py is enough for that, and
# TensorRT-LLM imports it.
_OF_RANKS = (
    *("SLURM_STEPID", "SLURM_STEP_ID", "PMI_FD", "PMI_JOBID", "PMI_RANK", "PMI_SIZE"),
    *("PMIX_NAMESPACE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


def words(job: ClusterJob, after: Sequence[str]) -> tuple[str, ...]:
    """Returns the arguments of `sbatch`; the job starts when those with the ids `after` have succeeded.

    Two jobs of one name and user run one after the other: the second finds the first one's results in the
    store. Options are on the command line, where they override the environment's SBATCH_….
    """
    order = [*([":".join(("afterok", *after))] if after else []), "singleton"]
    return (
        "--parsable",
        f"--job-name={job.name}",
        f"--comment={job.title}",
        *("--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append", "--export=ALL", "--chdir=/"),
        f"--output={str(job.log).replace('%', '%%')}",  # % begins a pattern
        f"--dependency={','.join(order)}",
        "--kill-on-invalid-dep=yes",
        *_asked(job),
    )


def script(job: ClusterJob, python: str, caches: Mapping[str, Path]) -> str:
    """Returns the script of a job, in which `python` runs trtspec if the recipe names no container.

    `caches` are folders by the variables that name them. A container runs in a step of one rank. That is no
    MPI rank unless the recipe names srun's kind of MPI.
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
            # Since Slurm 22.05 a step does not inherit this, and would be bound to one processor.
            *([f"--{_CPU}={cpus}"] if cpus else []),
            f"--container-image={section.container_image}",
            f"--container-mounts={','.join(mounts)}",
            *("env", *(f"--unset={name}" for name in (() if section.mpi else _OF_RANKS))),
            # The container has a home of its own.
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
    """Returns further options of sbatch: the recipe's, and those that the job needs and the recipe lacks."""
    section = job.recipe.slurm
    given = section.options | (section.gpu_options if job.gpus else {})
    memory = {} if given.keys() & _MEMORIES else {"mem": f"{math.ceil(job.memory / GIB)}G"}
    cpus = {} if given.keys() & _PROCESSORS else {_CPU: CPUS}
    return {**memory, **cpus, **given}


def _shell(argv: Sequence[str]) -> str:
    # With exec, Slurm's signals reach trtspec, and its exit status is the job's.
    return f"#!/bin/sh\nexec {shlex.join(argv)}\n"
