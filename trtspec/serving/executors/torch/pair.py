"""The loading of engines into this process: all on one device, or the draft on another than the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Executor
from trtspec.serving.executors.torch.device import CPU, find_device
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.memory import kv_tokens_of
from trtspec.serving.executors.torch.shared_weights import SharedWeights, shared_bytes
from trtspec.serving.executors.torch.thread_count import usable_threads
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.guides.guides import Guides


def load_engines(
    folders: Sequence[Path], draft_device: str | None = None, guides: Guides | None = None
) -> Sequence[Executor]:
    """Returns the executors of a target and, behind it, of a draft if there is one.

    They run on the first GPU, if there is one; a draft on `draft_device`, if that is named. On one device
    their KV caches hold as many tokens each, and on a CPU they hold weights that are alike once. A draft that
    lives in its target is where that is. They follow `guides`. Raises `EngineLoadError`.
    """
    device = find_device(None)
    configs = [read_config(folder) for folder in folders]
    is_elsewhere = draft_device is not None and find_device(draft_device) != device
    if configs[-1].draft is not None:
        if is_elsewhere:
            raise EngineLoadError(
                folders[-1], f"is inside its target's engine: on {device}, not on {draft_device}"
            )
        return _load_inside(folders, kv_tokens_of(configs, device), device, guides)
    if draft_device is not None and is_elsewhere:
        target, draft = folders
        return load_beside(
            lambda: [TorchExecutor(target, device=device, device_thread=_on_gpu(), guides=guides)],
            draft,
            draft_device,
            guides,
        )
    device_thread = DeviceThread()
    shared = SharedWeights() if device == CPU and len(folders) > 1 else None
    kv_tokens = kv_tokens_of(configs, device, shared_bytes(folders, configs) if shared else 0)
    loaded = [
        TorchExecutor(
            folder,
            device=device,
            device_thread=device_thread,
            kv_tokens=kv_tokens,
            guides=guides,
            shared=shared,
        )
        for folder in reversed(folders)
    ]
    return loaded[::-1]


def _load_inside(
    folders: Sequence[Path], kv_tokens: int, device: str, guides: Guides | None
) -> Sequence[Executor]:
    target = TorchExecutor(folders[0], device=device, kv_tokens=kv_tokens, guides=guides)
    try:
        return [target, TorchExecutor(folders[1], guides=guides, target=target)]
    except BaseException:
        target.shutdown()
        raise


def load_beside(
    load_target: Callable[[], Sequence[Executor]], draft: Path, device: str, guides: Guides | None = None
) -> list[Executor]:
    """Returns the executor of a target on a GPU and, behind it, of a draft of this backend on another device.

    The draft is loaded first: that takes seconds, and may fail. Raises `EngineLoadError`, and what
    `load_target` raises.
    """
    found = find_device(device)
    device_thread = DeviceThread(partial(usable_threads, busy=1)) if found == CPU else _on_gpu()
    proposing = TorchExecutor(draft, device=found, device_thread=device_thread, guides=guides)
    try:
        return [*load_target(), proposing]
    except BaseException:
        proposing.shutdown()
        raise


def _on_gpu() -> DeviceThread:
    """Returns a thread without helpers, which would only take processors from a draft on the CPU."""
    return DeviceThread(lambda: 1)
