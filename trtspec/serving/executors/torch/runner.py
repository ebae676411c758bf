"""The runner of one engine, with its waiting and running requests and their common steps."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from trtspec.serving.executor import GUIDE_REFUSED, NOT_FINITE, FinishReason, Limits, LogProb, Response
from trtspec.serving.executors.torch.cache import SlotMemory
from trtspec.serving.executors.torch.cache_slots import CacheSlots, SlotLease
from trtspec.serving.executors.torch.follower import BROKEN, ENDED, NOTHING, Followers
from trtspec.serving.executors.torch.model import StepModel
from trtspec.serving.executors.torch.sampler import Bias, Penalties, TokenChoice, choose, log_probs
from trtspec.serving.executors.torch.sequence import EngineSequence, StepScheduler, Work
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.text import common_prefix
from trtspec.serving.verification import decode, verify

log = logging.getLogger(__name__)

# The consecutive failed steps after which the engine is declared broken: one failed batch proves nothing.
MAX_FAILED_STEPS = 3

_NO_TOKEN = f"{GUIDE_REFUSED}the guide and the other options together leave no token"

# PyTorch before 2.8, as in NVIDIA's image of TensorRT-LLM 1.0, has no class for it.
_DEVICE_ERROR = getattr(torch, "AcceleratorError", ())


@dataclass(slots=True)
class RunnerStats:
    """The counts since the engine was loaded."""

    steps: int = 0
    rows: int = 0
    asked_tokens: int = 0
    """The number of prompt tokens of all requests."""
    reused_tokens: int = 0
    """The number of these that were already in the cache."""
    kv_held: int = 0
    """The number of tokens of the cache that running requests reserve."""
    kv_most: int = 0
    """The largest `kv_held` since it was last read."""


class Runner:
    """Runs the requests of one engine in steps; `say` gets each response.

    Everything but `stats` and `failure` is used on the thread of the device. `failure` is the reason why the
    engine runs no request any more, in one line; None while it works.
    """

    def __init__(
        self,
        limits: Limits,
        scheduler: StepScheduler,
        model: StepModel,
        cache: SlotMemory,
        slots: CacheSlots,
        say: Callable[[Response], None],
    ) -> None:
        self.longest_draft = limits.max_draft_len
        self.stats = RunnerStats()
        self.failure: str | None = None
        self._max_batch_size, self._scheduler = limits.max_batch_size, scheduler
        # These are the sequences of running requests, and of completions between two rounds.
        self._vocab_size, self._followers = limits.vocab_size, Followers(2 * limits.max_batch_size)
        self._model, self._cache, self._slots, self._say = model, cache, slots, say
        self._waiting: deque[EngineSequence] = deque()
        self._running: dict[int, EngineSequence] = {}
        self._failed_steps = 0
        self._names: Tensor | None = None

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def take(self, sequence: EngineSequence) -> None:
        """Queues a request, first come, first served."""
        error = self.failure or self._guide(sequence)
        if error is None:
            self._waiting.append(sequence)
        else:
            self._fail(sequence, error)

    def drop(self, request_id: int) -> None:
        """Drops a cancelled request if it has not ended yet."""
        if request_id in self._running:
            self._release(self._running[request_id])
        else:
            self._waiting = deque(other for other in self._waiting if other.request_id != request_id)

    def draw_as(self, names: Tensor) -> None:
        """Draws from now on as if these were the ids of all tokens, int64 `[vocab_size]`."""
        self._names = names

    def close(self) -> None:
        """Ends the thread that follows guides. No request may follow."""
        self._followers.close()

    def step(self) -> int:
        """Starts waiting requests, runs the model over the scheduled rows, responds, and returns the rows."""
        rows = self.stats.rows
        try:
            self._take_waiting()
            works = self._scheduler.schedule(self._running.values())
            if not works:  # All waiting requests have ended at once.
                return 0
            tokens, logged = self._run(works)
        except Exception as error:  # One failed batch must not end the engine.
            log.exception("a step of the engine failed")
            self._fail_step(error)
            return 0
        self._failed_steps = 0
        for work in works:
            chosen, tokens = tokens[: work.choices], tokens[work.choices :]
            self._advance(work, chosen, logged)
        return self.stats.rows - rows

    def _take_waiting(self) -> None:
        while self._waiting and len(self._running) < self._max_batch_size:
            sequence = self._waiting[0]
            lease = self._slots.take(sequence.text, sequence.prompt_len, sequence.new, sequence.longest)
            if lease is None:
                return
            self._waiting.popleft()
            self._begin(sequence, lease, lease.reused)
            self._cache.cut(lease.slot, lease.reused, sequence.longest)
            self.stats.kv_held = self._slots.busy
            self.stats.kv_most = max(self.stats.kv_most, self._slots.busy)

    def _begin(self, sequence: EngineSequence, lease: SlotLease, computed: int) -> None:
        """Starts a sequence in its slot, of which `computed` tokens need not be computed."""
        sequence.slot, sequence.computed, sequence.reused = lease.slot, computed, computed
        self._running[sequence.request_id] = sequence
        for slot in lease.dropped:
            self._cache.drop(slot)
        if lease.copy_from is not None:
            self._cache.copy(lease.copy_from, lease.slot, lease.reused, lease.present)
        self.stats.asked_tokens += sequence.prompt_len
        self.stats.reused_tokens += computed

    @torch.inference_mode()
    def _run(self, works: list[Work]) -> tuple[list[int], Iterator[LogProb]]:
        """Returns the chosen token of each row with logits, and the requested log-probabilities."""
        token_ids: list[int] = []
        wanted: list[int] = []
        spans: list[Span] = []
        for work in works:
            sequence = work.sequence
            spans.append(Span(sequence.slot, sequence.computed, work.rows, sequence.prompt_len))
            token_ids += sequence.tokens(sequence.computed, sequence.computed + work.rows)
            if work.choices:
                token_ids += sequence.draft_token_ids
                wanted += range(len(token_ids) - work.choices, len(token_ids))
        self.stats.steps += 1
        self.stats.rows += len(token_ids)
        logits = self._model.forward(token_ids, spans, wanted)
        for work in works:
            sequence = work.sequence
            if work.choices and sequence.guided is not None and not sequence.draft_token_ids:
                self._followers.mask(sequence.guided, [], self._vocab_size, sequence.num_endless)
            if work.choices and sequence.sampling.penalties:
                self._count(sequence, logits.device)
            if work.choices and sequence.embedding_bias and sequence.bias is None:
                sequence.bias = Bias(sequence.embedding_bias, logits.device)
        tokens = choose(logits, [_choice(work.sequence) for work in works if work.choices], self._names)
        owners = [work.sequence for work in works for _ in range(work.choices)]
        rows = [row for row, owner in enumerate(owners) if owner.log_probs is not None]
        if not rows:
            return tokens, iter(())
        # A row without an allowed token has no log-probability, and none is read.
        chosen, widths = [max(tokens[row], 0) for row in rows], [owners[row].top_log_probs for row in rows]
        return tokens, iter(log_probs(logits[rows], chosen, widths))

    def _guide(self, sequence: EngineSequence) -> str | None:
        """Begins to follow a guide, and cuts the draft after a forbidden token; returns the error, if any."""
        guided = sequence.guided
        if guided is None:
            return None
        self._followers.begin(guided, sequence.draft_token_ids, self._vocab_size, sequence.num_endless)
        if guided.masks is not None:
            sequence.draft_token_ids = sequence.draft_token_ids[: len(guided.masks.is_complete)]
        return guided.error

    def _count(self, sequence: EngineSequence, device: torch.device) -> None:
        """Adds the new tokens of the sequence to its penalties."""
        if sequence.penalties is None:
            sequence.penalties = Penalties(sequence.sampling, self._vocab_size, device)
        sequence.penalties.add(sequence.tokens(sequence.penalties.read, sequence.length))

    def _advance(self, work: Work, chosen: list[int], logged: Iterator[LogProb]) -> None:
        sequence = work.sequence
        if not work.choices:
            self._hold(sequence, sequence.computed + work.rows)
            return
        own = [] if sequence.log_probs is None else list(islice(logged, work.choices))
        draft, room, length, end_id = (
            sequence.draft_token_ids,
            sequence.room,
            sequence.length,
            sequence.end_id,
        )
        if (guided := sequence.guided) is not None and guided.masks is not None:
            chosen, end_id = guided.masks.read(chosen), ENDED
        result = verify(draft, chosen, end_id, room) if draft else decode(chosen[0], end_id, room)
        if guided is not None and (guided.error or NOTHING in result.token_ids):
            self._release(sequence)
            self._fail(sequence, guided.error or _NO_TOKEN)
            return
        if BROKEN in result.token_ids:
            self._hold(sequence, 0)  # No other request may continue from its keys and values.
            self._release(sequence)
            self._fail(sequence, NOT_FINITE)
            return
        sequence.new += result.token_ids
        if sequence.log_probs is not None:
            sequence.log_probs += own[: len(result.token_ids)]
        accepted = common_prefix(result.token_ids, draft, min(len(result.token_ids), len(draft)))
        self._hold(sequence, length + accepted)
        if result.finish_reason is not FinishReason.NOT_FINISHED:
            self._release(sequence)
        elif guided is not None:
            guided.said += result.token_ids
        response = sequence.response(result.finish_reason)
        if response is not None:
            self._say(response)

    def _hold(self, sequence: EngineSequence, computed: int) -> None:
        sequence.computed = computed
        self._slots.grow(sequence.slot, computed)

    def _release(self, sequence: EngineSequence) -> None:
        del self._running[sequence.request_id]
        self._slots.free(sequence.slot)
        self.stats.kv_held = self._slots.busy
        if sequence.guided is not None:
            self._followers.keep(sequence.guided)

    def _fail_step(self, error: Exception) -> None:
        """Fails the requests of a failed step, and clears the cache, whose content is unknown now."""
        self._failed_steps += 1
        failed = list(self._running.values())
        if isinstance(error, _DEVICE_ERROR):  # Every later call of CUDA would fail too.
            self.failure = f"The engine's device failed: {_line(error)}"
        elif self._failed_steps == MAX_FAILED_STEPS:
            self.failure = f"The engine failed {MAX_FAILED_STEPS} times in a row: {_line(error)}"
        if self.failure is not None:
            log.error("%s", self.failure)
            failed += self._waiting
            self._waiting.clear()
        elif not failed:  # The step failed while it started the first waiting request.
            failed.append(self._waiting.popleft())
        for sequence in list(self._running.values()):
            self._release(sequence)
        for slot in self._slots.clear():
            self._cache.drop(slot)
        for sequence in failed:
            self._fail(sequence, self.failure or f"The engine failed: {_line(error)}")

    def _fail(self, sequence: EngineSequence, error: str) -> None:
        self._say(Response(sequence.request_id, [], is_final=True, error=error))


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _choice(sequence: EngineSequence) -> TokenChoice:
    generated = len(sequence.new)
    return TokenChoice(
        sequence.sampling,
        sequence.seed + generated,
        generated,
        sequence.end_id,
        sequence.history,
        sequence.draft_token_ids,
        sequence.bad_words,
        sequence.bias,
        None if sequence.guided is None else sequence.guided.masks,
        sequence.penalties,
    )
