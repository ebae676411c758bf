"""The Triton edges over engines that only take time; `triton_overhead.py` serves it as `model.py`.

The model's name says what it is. Nobody waits for the engines of `instant` and `adaptive`, and for those of
`timed` somebody does; K is 4, and in `adaptive` at most 4. Both engines are in its process; one with `bls_`
before it calls the models whose names have `_target` and `_draft` behind it.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from tests.perf import coordinator as engines
else:
    import coordinator as engines

from trtspec.serving.executor import Executor, Limits
from trtspec.serving.executors.bls.bls_executor import BlsExecutor
from trtspec.serving.pace import Policy
from trtspec.serving.triton import engine_model, model
from trtspec.serving.triton.bls import TritonModel
from trtspec.serving.triton.engines import EnginePair

NAME = Path(__file__).parents[1].name
LIMITS = Limits(64, 8192, 8192, max_draft_len=engines.NUM_DRAFT_TOKENS, vocab_size=256)
POLICY: Policy = "adaptive" if "adaptive" in NAME else "fixed"
CLOCK = engines.Clock() if "timed" in NAME else engines.SkippingClock()


def engine(role: str) -> engines.TimedEngine:
    times = (0.0, engines.VERIFICATION_S) if role == "target" else (engines.DRAFT_TOKEN_S, 0.0)
    return engines.TimedEngine(LIMITS, CLOCK, *times)


def load(values: Mapping[str, str], folder: Path) -> EnginePair:
    in_process = not NAME.startswith("bls_")
    target, draft = (
        engine(role) if in_process else BlsExecutor(TritonModel(f"{NAME}_{role}"), LIMITS)
        for role in ("target", "draft")
    )
    return EnginePair(target, draft, engines.byte_tokenizer(), in_process=in_process, policy=POLICY)


def load_engine(parameters: Mapping[str, str], folder: Path) -> Executor:
    return engine(NAME.rpartition("_")[2])


class Coordinator(model.TritonPythonModel):
    load = staticmethod(load)


engine_model._load = load_engine
is_engine = NAME.endswith(("_target", "_draft"))
TritonPythonModel = engine_model.TritonPythonModel if is_engine else Coordinator
