"""The loading of engines into this process, on one device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.memory import kv_tokens_of
from trtspec.serving.executors.torch.torch_executor import TorchExecutor


def load_engines(folders: Sequence[Path]) -> list[TorchExecutor]:
    """Returns the executors of a target and, behind it, of a draft, on the GPU if there is one.

    The draft is loaded first, so that its steps come first (see `TurnOrder`). Their KV caches hold as many
    tokens each. Raises `EngineLoadError`.
    """
    device, device_thread = "cuda" if torch.cuda.is_available() else "cpu", DeviceThread()
    kv_tokens = kv_tokens_of([read_config(folder) for folder in folders], device)
    loaded = [
        TorchExecutor(folder, device=device, device_thread=device_thread, kv_tokens=kv_tokens)
        for folder in reversed(folders)
    ]
    return loaded[::-1]
