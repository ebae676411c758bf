"""An engine that discards the end of drafts, as TensorRT-LLM does when they do not fit a step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.fakes.around import Around
from trtspec.serving.executor import Executor, Listener, Request

Keep = Callable[[int], int]
"""How much is left of a draft of so many tokens."""


def keep_all(length: int) -> int:
    return length


def sometimes(seed: int, share: float = 0.3) -> Keep:
    """Cuts that share of all drafts anywhere, also to nothing."""
    dice = random.Random(seed)
    return lambda length: dice.randrange(length) if dice.random() < share else length


class Trimming(Around):
    """Gives another executor what is left of each draft."""

    def __init__(self, executor: Executor, keep: Keep) -> None:
        super().__init__(executor)
        self._keep = keep

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        if not (draft := request.draft_token_ids):
            return super().enqueue_request(request, listener)
        kept = self._keep(len(draft))
        request = replace(request, draft_token_ids=draft[:kept])
        return super().enqueue_request(request, lambda said: listener(replace(said, num_verified=kept)))
