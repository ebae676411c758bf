"""The executor of the torch backend, which the asyncio loop uses, and the loading of engines.

Engines are in this process, on one device or with the draft on another.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from trtspec.serving.errors import Busy, EngineLoadError, GuideError
from trtspec.serving.executor import (
    GUIDE_REFUSED,
    GUIDE_WAITS,
    Executor,
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
from trtspec.serving.executors.torch.device import CPU, find_device, kv_tokens_of
from trtspec.serving.executors.torch.device_thread import DeviceThread, usable_threads
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.linear import SharedWeights, shared_bytes
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.runner import Runner
from trtspec.serving.executors.torch.scoring import PromptScorer
from trtspec.serving.executors.torch.sequence import MAX_ROWS, EngineSequence, StepScheduler
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
        self.limits = replace(
            config.limits,
            guide_types=guide_types,
            resumes_guides=bool(guide_types),
            scores_prompts=target is None,
        )

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
        self._scorer: PromptScorer | None = None
        """None before the first prompt is scored, so that steps without do not look at it."""
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
        if request.scores_prompt and self._home is not None:
            self._score(self._home, EngineSequence(request_id, request, valid, 0))
        elif request.guide is None or self._guides is None:
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
            for engine in (self._runner, *((self._scorer,) if self._scorer else ())):
                self._device_thread.post(engine.drop, request_id)
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
            if self._scorer is not None:
                self._device_thread.leave(self._scorer)
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
        self._device_thread.post(self._runner.take, EngineSequence(request_id, request, valid, seed, grammar))

    def _score(self, home: Home, sequence: EngineSequence) -> None:
        if self._scorer is None:
            self._scorer = PromptScorer(home, self._say)
            self._device_thread.post(self._device_thread.join, self._scorer)
        self._device_thread.post(self._scorer.take, sequence)

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
