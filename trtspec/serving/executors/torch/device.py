"""The device of an engine: the one in the plan, or one that the machine has."""

from __future__ import annotations

import logging

import torch

from trtspec.serving.errors import EngineLoadError

log = logging.getLogger(__name__)

CPU = "cpu"


def find_device(named: str | None) -> str:
    """Returns PyTorch's name of the device `named`; None stands for the first GPU, or the CPU without one.

    On a machine without GPUs it is always the CPU, as for the target. Raises `EngineLoadError` for a GPU that
    a machine with other GPUs lacks.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if named == CPU or not count:
        if named not in (CPU, None):
            log.warning("neither %s nor any other GPU is here: the engine runs on the CPU", named)
        return CPU
    number = int(named.partition(":")[2]) if named else 0
    if number >= count:
        raise EngineLoadError("device", f"there is no {named}: GPUs that PyTorch sees: {count}")
    return f"cuda:{number}"
