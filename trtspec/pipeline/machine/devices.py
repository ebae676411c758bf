"""The GPUs of this machine, as `nvidia-smi` reports them, and settings that prevent building or serving."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from trtspec.base.errors import UnavailableError
from trtspec.base.findings import Finding
from trtspec.recipe.gpus import GPUS, GpuProduct

_FIELDS = (
    *("index", "uuid", "name", "compute_cap", "driver_version", "compute_mode", "mig.mode.current"),
    *("memory.total", "memory.free"),
)
_TIMEOUT_S = 20
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    index: int
    uuid: str
    name: str
    sm: int
    """The compute capability times ten."""
    driver: str
    compute_mode: str
    mig: bool
    memory: int
    """In bytes."""
    free: int
    """In bytes."""

    @property
    def shared(self) -> bool:
        """True if several processes may use it at once; TensorRT-LLM's workers are processes."""
        return self.compute_mode == "Default"


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that CUDA programs see on this machine; empty without a driver, or if nvidia-smi hangs."""
    executable = shutil.which("nvidia-smi")
    if executable is None:
        return ()
    query = f"--query-gpu={','.join(_FIELDS)}"
    try:
        result = subprocess.run(  # noqa: S603
            [executable, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ()
    return visible(parse(result.stdout), os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse(output: str) -> tuple[Gpu, ...]:
    """The GPUs in the output of the query; a line that describes none, such as an error, is left out."""
    return tuple(gpu for line in output.splitlines() if (gpu := _parse_line(line)))


def visible(gpus: Sequence[Gpu], variable: str | None) -> tuple[Gpu, ...]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves, in its order; all of them if it is not set.

    It has numbers, or beginnings of UUIDs that fit one GPU. CUDA stops at the first entry that names none.
    """
    if variable is None:
        return tuple(gpus)
    chosen = []
    for word in filter(None, variable.split(",")):
        named = [gpu for gpu in gpus if word.strip() == str(gpu.index) or gpu.uuid.startswith(word.strip())]
        if len(named) != 1:
            break
        chosen.append(named[0])
    return tuple(chosen)


def container_gpus(gpus: Sequence[Gpu], count: int, known: Container[str] = ()) -> tuple[str, ...]:
    """Returns the GPUs of a container that works on `count` of them: UUIDs, or numbers if fewer are here.

    Numbers are those of the host that a recipe names, for a command that is only shown here. `known` are the
    names that CDI has of them, if GPUs come by it; a UUID may not be among them.
    """
    if len(gpus) < count:
        return tuple(map(str, range(count)))
    return tuple(_cdi_name(gpu, known) for gpu in gpus[:count])


def apart(gpus: Sequence[Gpu], ranks: Sequence[int]) -> list[tuple[str, ...]]:
    """The UUIDs of each engine's own GPUs, one for each of its ranks; all empty if there are too few GPUs."""
    if sum(ranks) > len(gpus):
        return [()] * len(ranks)
    uuids = iter(gpu.uuid for gpu in gpus)
    return [tuple(next(uuids) for _ in range(count)) for count in ranks]


def _cdi_name(gpu: Gpu, known: Container[str]) -> str:
    # nvidia-ctk has written numbers and UUIDs since 1.15, and before that one of them, or `gpu` and a number.
    others = (name for name in (str(gpu.index), f"gpu{gpu.index}") if name in known)
    return gpu.uuid if gpu.uuid in known else next(others, gpu.uuid)


def _parse_line(line: str) -> Gpu | None:
    words = [word.strip() for word in line.split(",")]
    try:
        index, uuid, name, capability, driver, mode, mig, total, free = words
        return Gpu(
            index=int(index),
            uuid=uuid,
            name=name,
            sm=round(10 * float(capability)),
            driver=driver,
            compute_mode=mode,
            mig=mig == "Enabled",
            memory=int(total) * _MIB,
            free=int(free) * _MIB,
        )
    except ValueError:
        return None


def product_of(gpu: Gpu) -> GpuProduct:
    """Returns what recipes call this GPU, or one of the same kind; raises `UnavailableError` for another."""
    known = [each for each in GPUS.values() if each.sm == gpu.sm]
    for product in known:
        if product.label == gpu.name:
            return product
    if not known:
        raise UnavailableError(gpu.name, f"no recipe can name a GPU of compute capability {gpu.sm / 10}")
    return min(known, key=lambda each: each.memory_gib)


def settings_obstacle(found: Sequence[Gpu]) -> UnavailableError | None:
    """The error for the first such setting of these GPUs; None if there is none."""
    errors = (
        UnavailableError(gpu.name, each.problem, each.repair) for gpu in found for each in settings(gpu)
    )
    return next(errors, None)


def settings(gpu: Gpu) -> Iterator[Finding]:
    """Finds such settings of a GPU, with the command that changes each.

    On a GPU that allows only one process a server does not fail: it waits for its workers (issue #2798 of
    TensorRT-LLM).
    """
    if gpu.mig:
        problem = "is divided (MIG), but an engine is built for a whole GPU"
        yield Finding("MIG", problem, f"nvidia-smi -i {gpu.index} -mig 0")
    if not gpu.shared:
        problem = f"has compute mode {gpu.compute_mode}; TensorRT-LLM starts several processes on it"
        yield Finding("compute mode", problem, f"nvidia-smi -i {gpu.index} -c DEFAULT")
