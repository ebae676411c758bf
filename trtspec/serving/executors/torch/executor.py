"""The torch executor: one engine, its queue, and the step that they all take together."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import torch

from trtspec.serving.executor import FinishReason, Limits, Listener, Request, Response
from trtspec.serving.executors.outcome import decode, verify
from trtspec.serving.executors.torch.cache import Cache, Span
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.sampler import Choice, choose
from trtspec.serving.executors.torch.scheduler import Work, schedule
from trtspec.serving.executors.torch.sequence import Sequence
from trtspec.serving.executors.torch.slots import Slots, common_prefix
from trtspec.serving.executors.torch.turns import Turns
from trtspec.serving.executors.torch.weights import read_tensors
from trtspec.serving.executors.validation import Refused, validate

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Stats:
    """Counts since the engine was loaded; `reused_tokens` are prompt tokens that the cache already held."""

    steps: int = 0
    rows: int = 0
    reused_tokens: int = 0


class TorchExecutor:
    """Honours `trtspec.serving.executor.Executor` on a CPU or one GPU.

    `engine_dir` is an engine directory of the torch backend; raises `EngineLoadError`. Engines that share a
    device share `turns`, the draft engine loaded first. The cache has `slots` sequences of `max_seq_len`
    tokens, twice `max_batch_size` unless told otherwise: the second half holds the prefixes of requests
    between two rounds.
    """

    def __init__(
        self, engine_dir: Path, *, device: str = "cpu", turns: Turns | None = None, slots: int | None = None
    ) -> None:
        self._config = read_config(engine_dir)
        limits = self._config.limits
        slots = slots or 2 * limits.max_batch_size
        place = torch.device(device)
        self._cache: Cache | None = Cache(self._config, slots, place)
        tensors = read_tensors(engine_dir, self._config, place)
        self._model: Decoder | None = Decoder(self._config, tensors, self._cache, place)
        self._slots = Slots(slots)
        # A step has room for every sequence that decodes and for one verification.
        self._max_num_tokens = max(self._config.max_num_tokens, limits.max_batch_size + limits.max_draft_len)
        self._ids = itertools.count(1)
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}
        self._turns = turns or Turns()
        self._turns.join(self)
        self.stats = Stats()

    @property
    def limits(self) -> Limits:
        return self._config.limits

    @property
    def kv_tokens(self) -> int | None:
        return self._slots.count * self.limits.max_seq_len

    @property
    def progress(self) -> int:
        return self.stats.steps

    @property
    def failure(self) -> str | None:
        return None

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        request_id = next(self._ids)
        try:
            if self._model is None:
                raise Refused("The engine is shut down")
            valid = validate(request, self.limits)
        except Refused as refused:
            refusal = Response(request_id, [], is_final=True, error=str(refused))
            asyncio.get_running_loop().call_soon(listener, refusal)
            return request_id
        seed = request.sampling.seed
        seed = secrets.randbits(63) if seed is None else seed
        self._waiting.append(Sequence(request_id, request, valid, seed, listener))
        self._turns.wake()
        return request_id

    def cancel_request(self, request_id: int) -> None:
        sequence = self._running.get(request_id)
        if sequence is not None:
            self._release(sequence)
        else:
            sequence = next((other for other in self._waiting if other.request_id == request_id), None)
            if sequence is None:
                return
            self._waiting.remove(sequence)
        asyncio.get_running_loop().call_soon(sequence.report, FinishReason.CANCELLED)

    def shutdown(self) -> None:
        for request_id in [*self._running, *(sequence.request_id for sequence in self._waiting)]:
            self.cancel_request(request_id)
        self._turns.leave(self)
        self._model = self._cache = None

    def step(self) -> None:
        """Takes waiting requests in, runs the model once over what is scheduled, and reports."""
        try:
            self._take_waiting()
            works = schedule(self._running.values(), self._max_num_tokens)
            tokens = self._run(works)
        except Exception as error:  # The engine must go on serving whatever happens to one batch.
            log.exception("a step of the engine failed")
            self._fail_running(f"The engine failed: {error}")
            return
        for work in works:
            chosen, tokens = tokens[: work.choices], tokens[work.choices :]
            if work.sequence.request_id in self._running:  # No listener of this step has cancelled it.
                self._advance(work, chosen)

    def _take_waiting(self) -> None:
        while self._waiting and len(self._running) < self.limits.max_batch_size:
            sequence = self._waiting[0]
            lease = self._slots.take(sequence.tokens, needed=1)
            if lease is None:
                return
            self._waiting.popleft()
            if lease.copy_from is not None and self._cache is not None:
                self._cache.copy(lease.copy_from, lease.slot, lease.reused)
            sequence.slot, sequence.computed = lease.slot, lease.reused
            self._running[sequence.request_id] = sequence
            self.stats.reused_tokens += lease.reused

    @torch.inference_mode()
    def _run(self, works: list[Work]) -> list[int]:
        """The chosen token of each row whose logits are wanted."""
        assert self._model is not None
        token_ids: list[int] = []
        wanted: list[int] = []
        for work in works:
            sequence = work.sequence
            token_ids += sequence.tokens[sequence.computed : sequence.computed + work.rows]
            if work.choices:
                token_ids += sequence.draft
                wanted += range(len(token_ids) - work.choices, len(token_ids))
        self.stats.steps += 1
        self.stats.rows += len(token_ids)
        spans = [Span(work.sequence.slot, work.sequence.computed, work.rows) for work in works]
        logits = self._model.forward(token_ids, spans, wanted)
        return choose(logits, [_choice(work.sequence) for work in works if work.choices])

    def _advance(self, work: Work, chosen: list[int]) -> None:
        sequence = work.sequence
        if not work.choices:
            self._hold(sequence, sequence.computed + work.rows)
            return
        draft, room, length = sequence.draft, sequence.room, len(sequence.tokens)
        outcome = (
            verify(draft, chosen, sequence.end_id, room)
            if draft
            else decode(chosen[0], sequence.end_id, room)
        )
        sequence.tokens += outcome.token_ids
        accepted = common_prefix(outcome.token_ids, draft, min(len(outcome.token_ids), len(draft)))
        self._hold(sequence, length + accepted)
        if outcome.finish_reason is not FinishReason.NOT_FINISHED:
            self._release(sequence)
        sequence.report(outcome.finish_reason)

    def _hold(self, sequence: Sequence, computed: int) -> None:
        sequence.computed = computed
        self._slots.grow(sequence.slot, computed)

    def _release(self, sequence: Sequence) -> None:
        del self._running[sequence.request_id]
        self._slots.free(sequence.slot)

    def _fail_running(self, error: str) -> None:
        """The cache may hold anything now, so nothing in it is used again."""
        failed = list(self._running.values())
        for sequence in failed:
            self._release(sequence)
        self._slots.forget()
        for sequence in failed:
            sequence.fail(error)


def _choice(sequence: Sequence) -> Choice:
    return Choice(
        sequence.sampling,
        sequence.seed + sequence.generated,
        sequence.generated,
        sequence.end_id,
        sequence.tokens,
        sequence.draft,
        sequence.bad,
    )
