"""The loading of a target and its draft into this process, on one device."""

from __future__ import annotations

from pathlib import Path

import torch

from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.memory import kv_tokens_of
from trtspec.serving.executors.torch.torch_executor import TorchExecutor


def load_pair(target: Path, draft: Path) -> tuple[TorchExecutor, TorchExecutor]:
    """Returns target and draft from their engine directories, on the GPU if there is one.

    Their KV caches hold as many tokens each. Raises `EngineLoadError`.
    """
    device, device_thread = "cuda" if torch.cuda.is_available() else "cpu", DeviceThread()
    kv_tokens = kv_tokens_of([read_config(target), read_config(draft)], device)
    draft_executor = TorchExecutor(draft, device=device, device_thread=device_thread, kv_tokens=kv_tokens)
    return TorchExecutor(
        target, device=device, device_thread=device_thread, kv_tokens=kv_tokens
    ), draft_executor
