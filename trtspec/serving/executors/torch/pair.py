"""A target and its draft on one device, in this process."""

from __future__ import annotations

from pathlib import Path

import torch

from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.executor import TorchExecutor
from trtspec.serving.executors.torch.memory import kv_tokens_of
from trtspec.serving.executors.torch.turns import Turns


def load_pair(target: Path, draft: Path) -> tuple[TorchExecutor, TorchExecutor]:
    """Target and draft, from their engine directories, on the GPU if there is one.

    Their KV caches hold as many tokens each. Raises `EngineLoadError`.
    """
    device, turns = "cuda" if torch.cuda.is_available() else "cpu", Turns()
    kv_tokens = kv_tokens_of([read_config(target), read_config(draft)], device)
    draft_executor = TorchExecutor(draft, device=device, turns=turns, kv_tokens=kv_tokens)
    return TorchExecutor(target, device=device, turns=turns, kv_tokens=kv_tokens), draft_executor
