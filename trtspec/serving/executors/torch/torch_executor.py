"""The executor of the torch backend, which the asyncio loop uses."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from trtspec.serving.errors import Busy, EngineLoadError, GuideError
from trtspec.serving.executor import (
    GUIDE_REFUSED,
    GUIDE_WAITS,
    FinishReason,
    KvReuse,
    Listener,
    Request,
    Response,
)
from trtspec.serving.executors.torch.cache import Cache
from trtspec.serving.executors.torch.cache_slots import CacheSlots
from trtspec.serving.executors.torch.dependents.home import Home
from trtspec.serving.executors.torch.dependents.loading import load_dependent
from trtspec.serving.executors.torch.device import kv_tokens_of
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.packed_weights import SharedWeights
from trtspec.serving.executors.torch.runner import Runner
from trtspec.serving.executors.torch.sequence import MAX_ROWS, Sequence, StepScheduler
from trtspec.serving.executors.torch.weights import read_tensors
from trtspec.serving.executors.validation import Refused, Valid, validate
from trtspec.serving.guides.compiler import Grammar
from trtspec.serving.guides.guides import Guides

log = logging.getLogger(__name__)


class TorchExecutor:
    """Implements `trtspec.serving.executor.Executor` with PyTorch, on a CPU or one GPU.

    `engine_dir` is an engine directory of the torch backend; raises `EngineLoadError`. Engines on one device
    share its `device_thread`, and the draft engine is loaded first. The cache holds `kv_tokens`, or as many
    tokens as fit beside this engine alone. Without `guides` requests with a guide are refused. Engines with
    the same `shared` hold equal weights once. A draft inside its `target` is loaded after it, onto its device
    and thread, and has no cache of its own.

    Requests are validated and responses delivered here, on the loop's thread. `Runner` runs the requests, on
    the thread of the device.
    """

    def __init__(
        self,
        engine_dir: Path,
        *,
        device: str = "cpu",
        device_thread: DeviceThread | None = None,
        kv_tokens: int | None = None,
        guides: Guides | None = None,
        shared: SharedWeights | None = None,
        target: TorchExecutor | None = None,
    ) -> None:
        config = read_config(engine_dir)
        if config.draft is not None and (target is None or target._home is None):
            problem = "runs inside a target's engine, and there is none"
            raise EngineLoadError(engine_dir, f"{config.draft['method']}: {problem}")
        thread = target._device_thread if target else device_thread or DeviceThread()
        self._device_thread: DeviceThread = thread
        self.kv_tokens = None if target else kv_tokens or kv_tokens_of([config], device)
        """None for a draft inside its target, whose cache it uses."""
        guide_types = frozenset() if guides is None else guides.types
        self.limits = replace(config.limits, guide_types=guide_types, resumes_guides=bool(guide_types))

        def load() -> tuple[Home, Runner]:
            if target is not None and target._home is not None:
                return target._home, load_dependent(engine_dir, config, target._home, self._say)
            on = torch.device(device)
            cache = Cache(config, on)
            model = Decoder(config, read_tensors(engine_dir, config, on), cache, on, shared)
            home = Home(config, model, cache, CacheSlots(self.kv_tokens or 0))
            return home, _runner(home, self._say)

        self._home: Home | None
        self._runner: Runner | None
        self._home, self._runner = self._device_thread.call(load)
        self._listeners: dict[int, Listener] = {}
        self._guides, self._reading = guides, set[asyncio.Task[None]]()
        self._ids = itertools.count(1)
        self._device_thread.join(self._runner)
        self.stats = self._runner.stats

    def take_kv_use(self) -> float | None:
        if self.kv_tokens is None:
            return None
        most, self.stats.kv_most = self.stats.kv_most, self.stats.kv_held
        return most / self.kv_tokens

    @property
    def kv_reuse(self) -> KvReuse | None:
        return KvReuse(self.stats.asked_tokens, self.stats.reused_tokens)

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
        self._listeners[request_id] = listener
        if request.guide is None or self._guides is None:
            self._take(request_id, request, valid)
        elif (grammar := self._guides.find(request.guide)) is not None:
            self._take(request_id, request, valid, grammar)
        else:
            task = asyncio.get_running_loop().create_task(self._read(request_id, request, valid))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
        return request_id

    def cancel_request(self, request_id: int) -> None:
        listener = self._listeners.pop(request_id, None)
        if listener is not None and self._runner is not None:
            self._device_thread.post(self._runner.drop, request_id)
            cancelled = Response(request_id, [], is_final=True, finish_reason=FinishReason.CANCELLED)
            asyncio.get_running_loop().call_soon(listener, cancelled)

    def draw_as(self, token_ids: list[int]) -> None:
        """Implements `DrawsByToken.draw_as`."""
        if self._runner is not None and self._home is not None:
            names = torch.tensor(token_ids, device=self._home.model.embedding.device)
            self._device_thread.post(self._runner.draw_as, names)

    def shutdown(self) -> None:
        """Cancels all requests, waits for the running step, and frees the engine's memory."""
        for request_id in list(self._listeners):
            self.cancel_request(request_id)
        if self._runner is not None:
            self._device_thread.leave(self._runner)
            self._runner.close()
            self._runner = self._home = None

    async def _read(self, request_id: int, request: Request, valid: Valid) -> None:
        """Compiles the new guide of a request, and then submits the request."""
        assert request.guide is not None
        assert self._guides is not None
        try:
            grammar = await self._guides.grammar(request.guide)
        except GuideError as error:
            self._hear(Response(request_id, [], is_final=True, error=f"{GUIDE_REFUSED}{error}"))
        except Busy as error:
            self._hear(Response(request_id, [], is_final=True, error=f"{GUIDE_WAITS}{error.why}"))
        except Exception as error:  # Without a response the request would never end.
            log.exception("a guide could not be read")
            self._hear(Response(request_id, [], is_final=True, error=f"Guide failed: {error}"))
        else:
            self._take(request_id, request, valid, grammar)

    def _take(self, request_id: int, request: Request, valid: Valid, grammar: Grammar | None = None) -> None:
        if request_id not in self._listeners or self._runner is None:  # It was cancelled meanwhile.
            return
        seed = request.sampling.seed
        seed = secrets.randbits(63) if seed is None else seed
        self._device_thread.post(self._runner.take, Sequence(request_id, request, valid, seed, grammar))

    def _say(self, response: Response) -> None:
        self._device_thread.say(self._hear, response)

    def _hear(self, response: Response) -> None:
        """Passes a response to its listener, on the loop. A cancelled request has none any more."""
        take = self._listeners.pop if response.is_final else self._listeners.get
        listener = take(response.request_id, None)
        if listener is not None:
            listener(response)


def _runner(home: Home, say: Callable[[Response], None]) -> Runner:
    limits = home.config.limits
    # In each round the cache lacks the draft, and a token or two before it.
    short = limits.max_draft_len + 2
    most = min(MAX_ROWS[home.model.embedding.device.type], home.config.max_num_tokens)
    scheduler = StepScheduler(max(most, 4 * short), short)
    return Runner(limits, scheduler, home.model, home.cache, home.slots, say)
