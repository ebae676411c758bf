"""What is set on GPUs so that no engine is built or served on them; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtspec.errors import UnavailableError
from trtspec.machine.devices import Gpu


def settings_obstacle(found: Sequence[Gpu]) -> UnavailableError | None:
    """The first thing that is set so on one of these GPUs."""
    for gpu in found:
        problems = {
            "MIG": "is divided (MIG), and an engine is built for a whole GPU",
            "compute mode": f"has compute mode {gpu.compute_mode}; "
            "TensorRT-LLM starts several processes on it",
        }
        for name, repair in settings(gpu):
            return UnavailableError(gpu.name, problems[name], repair)
    return None


def settings(gpu: Gpu) -> Iterator[tuple[str, str]]:
    """The name of each thing that is set so on a GPU, with the command that changes it.

    A server on a GPU of one process alone does not fail, it waits for its workers (TensorRT-LLM #2798).
    """
    if gpu.mig:
        yield "MIG", f"nvidia-smi -i {gpu.index} -mig 0"
    if not gpu.shared:
        yield "compute mode", f"nvidia-smi -i {gpu.index} -c DEFAULT"
