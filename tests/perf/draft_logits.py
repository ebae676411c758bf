"""The Python side of one-hot draft logits: how long lending, handing over and taking back a buffer takes.

`python -m tests.perf.draft_logits`. K = 8 and 128k tokens, in process on the stand-in for NVIDIA's bindings,
and a copy such as the `bls` layout makes. `tests/perf/README.md` has what a real engine adds.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import numpy as np

from tests.fakes.bindings import stand_in
from trtspec.serving.executor import LogitsFormat, Request, SamplingConfig
from trtspec.serving.executors.draft_logits import DraftLogits, Rows
from trtspec.serving.executors.tensorrt_llm.bindings import to_bindings
from trtspec.serving.executors.validation import Valid
from trtspec.serving.text import Text

K, VOCAB_SIZE, TIMES = 8, 128_256, 200


def median_us(work: Callable[[], object]) -> float:
    """The median of so many calls, after one that does not count."""
    times = []
    for _ in range(TIMES + 1):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:]) * 1e6


def main() -> None:
    logits = DraftLogits(K, LogitsFormat(VOCAB_SIZE, "float32"))
    draft = random.Random(1).sample(range(VOCAB_SIZE), K)
    text, shared = Text(range(500)), np.empty([K, VOCAB_SIZE], np.float32)
    request = Request(text, K + 1, draft, sampling=SamplingConfig(temperature=1.0, seed=1))
    valid = Valid(text, len(text), draft, K + 1)

    with stand_in() as trtllm:

        def verify(rows: Rows | None) -> None:
            to_bindings(trtllm, request, valid, VOCAB_SIZE, rows)

        def with_logits() -> None:
            rows = logits.lend(draft)
            verify(rows)
            logits.take_back(rows, draft)

        def lent() -> None:
            logits.take_back(logits.lend(draft), draft)

        rows = logits.lend(draft)
        without, with_ = median_us(lambda: verify(None)), median_us(with_logits)
        print(f"lend and take back      {median_us(lent):8.1f} us")
        print(f"a request without       {without:8.1f} us")
        print(f"a request with logits   {with_:8.1f} us")
        copied, made = median_us(lambda: np.copyto(shared, rows)), median_us(lambda: np.full_like(rows, 0))
        print(f"one copy of {rows.nbytes / 2**20:.1f} MiB     {copied:8.1f} us")
        print(f"a buffer made each time {made:8.1f} us")


if __name__ == "__main__":
    main()
