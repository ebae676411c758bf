"""The model of a deployment whose steps take a GPU's time; `fleet.py --paced` serves it as `model.py`.

Each step of the tiny engines computes what it would, and then waits until so much time has passed as a step
of so many rows is to take. The processor is free meanwhile, as it is while a GPU computes, so that replicas
on one machine do not take it from one another.
"""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from trtspec.serving.executor import Executor
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.triton import engines, model

TARGET, DRAFT = (15e-3, 0.6e-3), (5e-3, 0.05e-3)
"""The seconds of a step, and of each row of it."""


def load(values: Mapping[str, str], folder: Path) -> engines.EnginePair:
    pair = engines.load(values, folder)
    for engine, (step_s, row_s) in ((pair.target, TARGET), (pair.draft, DRAFT)):
        _pace(engine, step_s, row_s)
    return pair


def _pace(engine: Executor | None, step_s: float, row_s: float) -> None:
    assert isinstance(engine, TorchExecutor)
    runner = engine._runner
    assert runner is not None
    run: Callable[[Any], Any] = runner._run

    def paced(works: Any) -> Any:
        begin, before = time.perf_counter(), runner.stats.rows
        found = run(works)
        until = begin + step_s + row_s * (runner.stats.rows - before)
        time.sleep(max(0.0, until - time.perf_counter()))
        return found

    setattr(runner, "_run", paced)  # noqa: B010


class TritonPythonModel(model.TritonPythonModel):
    load = staticmethod(load)
