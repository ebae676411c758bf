"""The threads that steps choose, beside one and all, while another program is busy now and then; JSON.

    python -m tests.perf.threads [--streams 16] [--blocks 4]

The program computes and sleeps by turns, for so many milliseconds each. The tiny pair's target decodes alone
meanwhile, with one thread, with all, and with as many as `ThreadCount` sets. A ratio is the speed of these
beside that of the better of the two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import torch

from tests.perf.pair import built, heldout, machine
from tests.perf.peer import TOKENS, Answer, trtspec
from trtspec.serving.executors.torch import device_thread
from trtspec.serving.executors.torch.device_thread import ThreadCount
from trtspec.serving.tokenizer import Tokenizer

DUTIES = ((0, 1), (0.1, 0.2), (0.3, 0.3), (1, 4), (1, 1), (3, 7), (3, 3), (10, 20), (1, 0))
PROGRAM = """
import sys, time
busy, idle = (float(text) / 1e3 for text in sys.argv[1:])
while True:
    until = time.perf_counter() + busy
    while time.perf_counter() < until:
        pass
    if idle:
        time.sleep(idle)
"""


class Switch(ThreadCount):
    """Sets `forced` threads, where that is not None."""

    forced: ClassVar[int | None] = None

    def note(self, wall_s: float, cpu_s: float, engine: int, rows: int) -> None:
        if self.forced is None:
            super().note(wall_s, cpu_s, engine, rows)
        elif self.now != self.forced:
            self.now = self.forced
            self._set_threads(self.now)


@contextmanager
def program(busy_ms: float, idle_ms: float) -> Iterator[None]:
    if not busy_ms:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(busy_ms), str(idle_ms)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def speed(answer: Answer, blocks: list[list[list[int]]], threads: int | None) -> float:
    """Tokens per second, behind as many blocks in which the number of threads is found."""
    Switch.forced = threads
    seconds = []
    for block in [*blocks, *blocks]:
        start = time.perf_counter()
        answer(block)
        seconds.append((time.perf_counter() - start) / len(block))
    return TOKENS / statistics.mean(seconds[len(blocks) :])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=4)
    options = parser.parse_args()
    most = torch.get_num_threads()
    duties: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        build = built(Path(folder), "float32")
        tokenizer = Tokenizer.load(build / "tokenizer")
        prompts = [tokenizer.encode(text) for text in heldout(options.streams * options.blocks)]
        blocks = [prompts[n * options.streams :][: options.streams] for n in range(options.blocks)]
        with patch.object(device_thread, "ThreadCount", Switch):
            answer = trtspec("plain", build, "fixed")
        speed(answer, blocks, None)
        for busy_ms, idle_ms in DUTIES:
            with program(busy_ms, idle_ms):
                one, all_, chosen = (speed(answer, blocks, threads) for threads in (1, most, None))
            duties[f"{busy_ms} ms busy, {idle_ms} idle"] = {
                "one": round(one),
                "all": round(all_),
                "chosen": round(chosen),
                "ratio": round(chosen / max(one, all_), 2),
            }
    json.dump({"machine": machine(), "streams": options.streams, "duties": duties}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
