"""The Triton edges over engines that only take time; `triton_overhead.py` serves it as `model.py`.

The model's name says what it is: `instant` or `timed` has both engines in its process, `bls_` before it calls
the models whose names have `_target` and `_draft` behind it.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from tests.perf.coordinator import DRAFT_TOKEN_S, VERIFICATION_S, Clock, TimedEngine, byte_tokenizer
else:
    from coordinator import DRAFT_TOKEN_S, VERIFICATION_S, Clock, TimedEngine, byte_tokenizer

from trtspec.serving.executor import Executor, Limits
from trtspec.serving.executors.bls.bls_executor import BlsExecutor
from trtspec.serving.triton import engine_model, model
from trtspec.serving.triton.bls import TritonModel
from trtspec.serving.triton.engines import Pair

NAME = Path(__file__).parents[1].name
LIMITS = Limits(max_batch_size=64, max_input_len=8192, max_seq_len=8192, max_draft_len=8, vocab_size=256)


def engine(role: str) -> TimedEngine:
    """One that answers at once, or after a time."""
    clock = Clock() if "timed" in NAME else None
    times = (0.0, VERIFICATION_S) if role == "target" else (DRAFT_TOKEN_S, 0.0)
    return TimedEngine(LIMITS, clock, *times)


def load(values: Mapping[str, str], folder: Path) -> Pair:
    in_process = not NAME.startswith("bls_")
    target, draft = (
        engine(role) if in_process else BlsExecutor(TritonModel(f"{NAME}_{role}"), LIMITS)
        for role in ("target", "draft")
    )
    return Pair(target, draft, byte_tokenizer(), in_process=in_process)


def load_engine(parameters: Mapping[str, str], folder: Path) -> Executor:
    return engine(NAME.rpartition("_")[2])


class Coordinator(model.TritonPythonModel):
    load = staticmethod(load)


engine_model._load = load_engine
is_engine = NAME.endswith(("_target", "_draft"))
TritonPythonModel = engine_model.TritonPythonModel if is_engine else Coordinator
