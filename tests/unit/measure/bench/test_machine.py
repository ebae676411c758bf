"""GPU use, as an nvidia-smi that prints a line now and then says it."""

from __future__ import annotations

import asyncio
import math
import os
import stat
from pathlib import Path
from time import perf_counter

import pytest

from trtspec.measure.bench.session import GpuMeter

# Two GPUs, of which one is divided and does not say; it ends when its reader has gone.
PROGRAM = """#!/bin/sh
test "$*" = "--query-gpu=utilization.gpu --format=csv,noheader,nounits -lms 500" || exit 2
while echo 80 && echo '[N/A]' && echo 40; do sleep 0.02; done
"""


def test_the_mean_is_of_the_spans_that_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(PROGRAM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    async def watch() -> tuple[float | None, float | None]:
        async with GpuMeter() as meter:
            while meter.use([(0.0, math.inf)]) is None or len(meter.seen) % 2:
                await asyncio.sleep(0.01)
            now = perf_counter()
            return meter.use([(0.0, now)]), meter.use([(now + 1, now + 2)])

    use, later = asyncio.run(watch())
    assert use == pytest.approx(0.6)
    assert later is None


def test_without_a_gpu_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    async def watch() -> float | None:
        async with GpuMeter() as meter:
            return meter.use([(0.0, math.inf)])

    assert asyncio.run(watch()) is None
