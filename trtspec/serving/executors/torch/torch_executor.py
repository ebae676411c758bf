"""The executor of the torch backend, as the asyncio loop uses it."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from pathlib import Path

import torch

from trtspec.serving.executor import FinishReason, Limits, Listener, Request, Response
from trtspec.serving.executors.torch.cache import Cache
from trtspec.serving.executors.torch.cache_slots import CacheSlots
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.engine import TorchEngineConfig, read_config
from trtspec.serving.executors.torch.memory import kv_tokens_of
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.runner import Runner
from trtspec.serving.executors.torch.scheduler import MAX_ROWS, Scheduler
from trtspec.serving.executors.torch.sequence import Sequence
from trtspec.serving.executors.torch.weights import read_tensors
from trtspec.serving.executors.validation import Refused, validate


class TorchExecutor:
    """Implements `trtspec.serving.executor.Executor` with PyTorch, on a CPU or one GPU.

    `engine_dir` is an engine directory of the torch backend; raises `EngineLoadError`. Engines of one
    device share its `device_thread`, and the draft engine is loaded first. The cache holds `kv_tokens` or as
    many tokens as fit beside this engine alone; those that no request uses keep the prefixes of requests
    between two rounds.

    Requests are checked and answered here, on the loop's thread; `Runner` does all that is between, on the
    thread of the device.
    """

    def __init__(
        self,
        engine_dir: Path,
        *,
        device: str = "cpu",
        device_thread: DeviceThread | None = None,
        kv_tokens: int | None = None,
    ) -> None:
        config, self._device_thread = read_config(engine_dir), device_thread or DeviceThread()
        self._limits, self._kv_tokens = config.limits, kv_tokens or kv_tokens_of([config], device)
        self._runner: Runner | None = self._device_thread.call(
            lambda: _load(engine_dir, config, torch.device(device), self._kv_tokens, self._say)
        )
        self._listeners: dict[int, Listener] = {}
        self._ids = itertools.count(1)
        self._device_thread.join(self._runner)
        self.stats = self._runner.stats

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def kv_tokens(self) -> int | None:
        return self._kv_tokens

    @property
    def progress(self) -> int:
        return self.stats.steps

    @property
    def failure(self) -> str | None:
        return self._runner.failure if self._runner is not None else "The engine is shut down"

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        request_id = next(self._ids)
        try:
            if self._runner is None or self._runner.failure is not None:
                raise Refused(self.failure)
            valid = validate(request, self.limits)
        except Refused as refused:
            refusal = Response(request_id, [], is_final=True, error=str(refused))
            asyncio.get_running_loop().call_soon(listener, refusal)
            return request_id
        seed = request.sampling.seed
        seed = secrets.randbits(63) if seed is None else seed
        self._listeners[request_id] = listener
        self._device_thread.post(self._runner.take, Sequence(request_id, request, valid, seed))
        return request_id

    def cancel_request(self, request_id: int) -> None:
        listener = self._listeners.pop(request_id, None)
        if listener is not None and self._runner is not None:
            self._device_thread.post(self._runner.drop, request_id)
            cancelled = Response(request_id, [], is_final=True, finish_reason=FinishReason.CANCELLED)
            asyncio.get_running_loop().call_soon(listener, cancelled)

    def shutdown(self) -> None:
        """Cancels all requests, waits for the step that runs, and frees the engine's memory."""
        for request_id in list(self._listeners):
            self.cancel_request(request_id)
        if self._runner is not None:
            self._device_thread.leave(self._runner)
            self._runner = None

    def _say(self, response: Response) -> None:
        self._device_thread.say(self._hear, response)

    def _hear(self, response: Response) -> None:
        """Passes a response to its listener, on the loop; a cancelled request has none any more."""
        take = self._listeners.pop if response.is_final else self._listeners.get
        listener = take(response.request_id, None)
        if listener is not None:
            listener(response)


def _load(
    engine_dir: Path,
    config: TorchEngineConfig,
    device: torch.device,
    kv_tokens: int,
    say: Callable[[Response], None],
) -> Runner:
    limits, cache = config.limits, Cache(config, device)
    model = Decoder(config, read_tensors(engine_dir, config, device), cache, device)
    # From round to round the cache lacks a draft, and a token or two before it.
    short = limits.max_draft_len + 2
    scheduler = Scheduler(max(min(MAX_ROWS[device.type], config.max_num_tokens), 4 * short), short)
    return Runner(limits, scheduler, model, cache, CacheSlots(kv_tokens), say)
