"""Times steps of the torch executor on random models, JSON out: `python -m tests.perf.executor [--profile]`.

Times are microseconds, the 10th percentile of many runs, since a shared machine only ever adds to them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from tests.fakes.engine_dir import tiny_llama, write_engine
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.executors.torch.torch_executor import TorchExecutor

LENGTH = 200
MODELS = {
    "target": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8},
    "draft": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 1},
}


def steps(executor: TorchExecutor) -> dict[str, Callable[[], object]]:
    """Each step with greedy choice of its tokens, without the queue around it."""
    assert executor._runner is not None
    model = executor._runner._model

    def step(
        rows: int, sequences: int = 1, start: int = LENGTH, choices: int | None = None
    ) -> Callable[[], object]:
        spans = [Span(slot, start, rows) for slot in range(sequences)]
        token_ids = [7 + index % 100 for index in range(rows * sequences)]
        wanted = list(range(len(token_ids)))[-(choices or len(token_ids)) :]

        @torch.inference_mode()
        def run() -> object:
            return model.forward(token_ids, spans, wanted).argmax(-1).tolist()

        return run

    return {
        "1 row": step(1),
        "5 rows": step(5),
        "9 rows": step(9),
        "prefill 256": step(256, start=0, choices=1),
        "16 x 1 row": step(1, sequences=16),
        "16 x 5 rows": step(5, sequences=16),
    }


def microseconds(run: Callable[[], object], seconds: float = 1.0) -> float:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 30 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return round(sorted(times)[len(times) // 10] * 1e6, 1)


def profiled(run: Callable[[], object]) -> str:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(100):
            run()
    return str(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--profile", action="store_true", help="print the operators of one-row steps to stderr"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    device_thread = DeviceThread()
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "threads": arguments.threads,
        "dtype": arguments.dtype,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, sizes in MODELS.items():
            sizes = sizes | {"num_attention_heads": sizes["hidden_size"] // 64, "head_dim": 64}
            model = tiny_llama(vocab_size=4096, dtype=getattr(torch, arguments.dtype), **sizes)
            engine = write_engine(Path(folder) / name, model, max_batch_size=16, max_seq_len=1024)
            start = time.perf_counter()
            executor = TorchExecutor(engine, device_thread=device_thread)
            report[name] = {"load seconds": round(time.perf_counter() - start, 3)}
            runs = steps(executor)
            for step, run in runs.items():
                report[name][step] = device_thread.call(partial(microseconds, run))
            if arguments.profile:
                print(device_thread.call(partial(profiled, runs["1 row"])), file=sys.stderr)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
