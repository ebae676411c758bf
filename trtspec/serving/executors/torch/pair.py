"""The loading of engines into this process, on one device or with the draft on another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Executor
from trtspec.serving.executors.torch.device import CPU, find_device, kv_tokens_of
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.packed_weights import SharedWeights, shared_bytes
from trtspec.serving.executors.torch.thread_count import usable_threads
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.guides.guides import Guides


def load_engines(
    folders: Sequence[Path], draft_device: str | None = None, guides: Guides | None = None
) -> Sequence[Executor]:
    """Returns the executors of a target and then of a draft, if there is one.

    They run on the first GPU, or on the CPU without one. The draft runs on `draft_device` if it is given; a
    draft inside its target runs where the target does. On one device their KV caches hold the same number of
    tokens, and on a CPU they share equal weights. They follow `guides`. Raises `EngineLoadError`.
    """
    device = find_device(None)
    configs = [read_config(folder) for folder in folders]
    is_elsewhere = draft_device is not None and find_device(draft_device) != device
    if configs[-1].draft is not None:
        if is_elsewhere:
            problem = f"is inside its target's engine: on {device}, not on {draft_device}"
            raise EngineLoadError(folders[-1], problem)
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

    def load(folder: Path) -> Executor:
        return TorchExecutor(
            folder,
            device=device,
            device_thread=device_thread,
            kv_tokens=kv_tokens,
            guides=guides,
            shared=shared,
        )

    target, *drafts = folders
    return _beside([load(draft) for draft in drafts], lambda: [load(target)])


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
    """Returns the executor of a target on a GPU and then of a draft of this backend on another device.

    The draft is loaded first: that takes only seconds, and may fail. Raises `EngineLoadError`, and the errors
    of `load_target`.
    """
    found = find_device(device)
    device_thread = DeviceThread(partial(usable_threads, busy=1)) if found == CPU else _on_gpu()
    return _beside(
        [TorchExecutor(draft, device=found, device_thread=device_thread, guides=guides)], load_target
    )


def _beside(drafts: Sequence[Executor], load_target: Callable[[], Sequence[Executor]]) -> list[Executor]:
    """Returns the executors of a target and its draft, which is shut down if the target does not load."""
    try:
        return [*load_target(), *drafts]
    except BaseException:
        for draft in drafts:
            draft.shutdown()
        raise


def _on_gpu() -> DeviceThread:
    """Returns a device thread that computes alone: others would take processors from a draft on the CPU."""
    return DeviceThread(lambda: 1)
