"""The Triton edge over engines that only take time; `triton_overhead.py` serves it as `model.py`."""

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from coordinator import DRAFT_TOKEN_S, VERIFICATION_S, Clock, TimedEngine, byte_tokenizer

from trtspec.serving.executor import Limits
from trtspec.serving.triton import model
from trtspec.serving.triton.engines import Pair


def load(parameters: Mapping[str, str], folder: Path) -> Pair:
    """Engines that answer at once, or after a time: the model is instant or timed."""
    clock = Clock() if folder.name == "timed" else None
    limits = Limits(max_batch_size=64, max_input_len=8192, max_seq_len=8192, max_draft_len=8, vocab_size=256)
    target = TimedEngine(limits, clock, 0.0, VERIFICATION_S)
    draft = TimedEngine(limits, clock, DRAFT_TOKEN_S, 0.0)
    return Pair(target, draft, byte_tokenizer())


class TritonPythonModel(model.TritonPythonModel):
    load = staticmethod(load)
