"""Scores prompts: the model's log-probability of each of their own tokens. It is an engine beside the runner.

The keys and values stay in the slot, where the request that continues the prompt finds them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import torch

from trtspec.serving.executor import FinishReason, Response
from trtspec.serving.executors.torch.dependents.home import Home
from trtspec.serving.executors.torch.sampler import log_probs
from trtspec.serving.executors.torch.sequence import EngineSequence
from trtspec.serving.executors.torch.spans import Span

log = logging.getLogger(__name__)

ROWS = 128
"""The rows of a step. Each has logits, 20 MB for 128 rows of a vocabulary of 32,000 and float32."""


class PromptScorer:
    """Computes one prompt after another, a chunk in each step; `say` gets each response. It is a `Stepper`.

    It is used on the device's thread. A prompt waits while running requests leave it no room in the cache.
    """

    # More than 0, so that its turns come after those of the engines of running requests.
    longest_draft = 1

    def __init__(self, home: Home, say: Callable[[Response], None]) -> None:
        self._home, self._say = home, say
        self._prompts: deque[EngineSequence] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self._prompts)

    def take(self, sequence: EngineSequence) -> None:
        self._prompts.append(sequence)

    def drop(self, request_id: int) -> None:
        """Drops a cancelled request if it has not ended yet."""
        for sequence in [each for each in self._prompts if each.request_id == request_id]:
            self._prompts.remove(sequence)
            if sequence.slot >= 0:
                self._home.slots.free(sequence.slot)

    def step(self) -> int:
        sequence = self._prompts[0]
        try:
            if sequence.slot < 0 and not self._begin(sequence):
                return 0
            rows = self._score(sequence)
        except Exception as error:  # One failed prompt must not end the engine.
            log.exception("a prompt could not be scored")
            if sequence.slot >= 0:
                self._home.slots.grow(sequence.slot, 0)
            self._end(sequence, f"The engine failed: {error}")
            return 0
        if sequence.computed == sequence.prompt_len - 1:
            self._end(sequence)
        return rows

    def _begin(self, sequence: EngineSequence) -> bool:
        """Takes a slot, and says whether there is one. What the slot has of the prompt is computed again."""
        lease = self._home.slots.take(sequence.text, sequence.prompt_len, sequence.new, sequence.prompt_len)
        if lease is None:
            return False
        cache = self._home.cache
        sequence.slot, sequence.reused = lease.slot, lease.reused
        for slot in lease.dropped:
            cache.drop(slot)
        if lease.copy_from is not None:
            cache.copy(lease.copy_from, lease.slot, lease.reused, lease.present)
        cache.cut(lease.slot, lease.reused, sequence.prompt_len)
        return True

    @torch.inference_mode()
    def _score(self, sequence: EngineSequence) -> int:
        start = sequence.computed
        end = min(start + ROWS, sequence.prompt_len - 1)
        rows = end - start
        span = Span(sequence.slot, start, rows, sequence.prompt_len)
        logits = self._home.model.forward(sequence.tokens(start, end), [span], list(range(rows)))
        following = sequence.tokens(start + 1, end + 1)
        assert sequence.log_probs is not None
        sequence.log_probs += log_probs(logits, following, [sequence.top_log_probs] * rows)
        sequence.computed = end
        self._home.slots.grow(sequence.slot, max(end, sequence.reused))
        return rows

    def _end(self, sequence: EngineSequence, error: str | None = None) -> None:
        self._prompts.remove(sequence)
        if sequence.slot >= 0:
            self._home.slots.free(sequence.slot)
        scores = None if error else sequence.log_probs
        self._say(Response(sequence.request_id, [], True, FinishReason.LENGTH, error, scores))
