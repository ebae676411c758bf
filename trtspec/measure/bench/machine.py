"""Describes the machine that `bench` runs on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from trtspec.measure.bench.result import BenchMachine
from trtspec.pipeline.machine.devices import find_gpus


def this_machine() -> BenchMachine:
    """Returns the facts of this machine for a result, without its name and address."""
    return BenchMachine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        gpus=tuple(gpu.name for gpu in find_gpus()),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
