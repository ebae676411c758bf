"""The names of the devices that an engine may run on, as PyTorch writes them."""

from __future__ import annotations

import re

CPU = "cpu"
PATTERN = r"^(cpu|cuda:(0|[1-9][0-9]{0,2}))$"


def check(value: object) -> object:
    """Returns the name of a device; raises ValueError with problem and repair for what is none."""
    if isinstance(value, str) and re.fullmatch(PATTERN, value):
        return value
    problem = f"found {value!r:.80}; allowed: cpu, or a GPU by its number: cuda:0, cuda:1 and so on"
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(problem, f"write cuda:{value}")
    raise ValueError(problem)


def gpus_of(device: str | None) -> tuple[int, ...] | None:
    """Returns the GPUs, by CUDA's numbers, that a device is: none for the CPU; None if none is named."""
    if device is None:
        return None
    return () if device == CPU else (int(device.partition(":")[2]),)
