"""Settings of GPUs that prevent building or serving an engine; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtspec.base.errors import UnavailableError
from trtspec.pipeline.machine.devices import Gpu


def settings_obstacle(found: Sequence[Gpu]) -> UnavailableError | None:
    """The error for the first such setting of these GPUs; None if there is none."""
    for gpu in found:
        problems = {
            "MIG": "is divided (MIG), but an engine is built for a whole GPU",
            "compute mode": f"has compute mode {gpu.compute_mode}; "
            "TensorRT-LLM starts several processes on it",
        }
        for name, repair in settings(gpu):
            return UnavailableError(gpu.name, problems[name], repair)
    return None


def settings(gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Yields the name of each such setting of a GPU, with the command that changes it.

    On a GPU that allows only one process a server does not fail: it waits for its workers (issue #2798 of
    TensorRT-LLM).
    """
    if gpu.mig:
        yield "MIG", f"nvidia-smi -i {gpu.index} -mig 0"
    if not gpu.shared:
        yield "compute mode", f"nvidia-smi -i {gpu.index} -c DEFAULT"
