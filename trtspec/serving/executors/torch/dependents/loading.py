"""The loading of a draft inside its target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import FinishReason, Limits, Response
from trtspec.serving.executors.torch.dependents import eagle, eagle3, layers, medusa
from trtspec.serving.executors.torch.dependents.head import AttachedHead
from trtspec.serving.executors.torch.dependents.home import Home
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.model import StepModel
from trtspec.serving.executors.torch.runner import Runner
from trtspec.serving.executors.torch.sequence import MAX_ROWS, EngineSequence, StepScheduler
from trtspec.serving.executors.torch.weights import Form, read_rank


class DependentRunner(Runner):
    """Drafts in the slots of the target, after the tokens that it has computed.

    The target must have computed the prompt except its last token, and its cache must have room. Otherwise
    the request ends at once with `LENGTH` and no token. A draft has `longest` tokens at most. The target's
    keys and values in a slot never change, even if the draft is cancelled or fails.
    """

    def __init__(
        self,
        limits: Limits,
        scheduler: StepScheduler,
        model: StepModel,
        home: Home,
        longest: int,
        say: Callable[[Response], None],
    ) -> None:
        super().__init__(limits, scheduler, model, home.cache, home.slots, say)
        self._longest, self._is_head = longest, isinstance(model, AttachedHead)

    def _take_waiting(self) -> None:
        while self._waiting and len(self._running) < self._max_batch_size:
            sequence = self._waiting[0]
            sequence.max_tokens = min(sequence.max_tokens, self._longest)
            lease = None
            if sequence.prompt_len > 1:
                text, new, longest = sequence.text, sequence.new, sequence.longest
                lease = self._slots.borrow(text, sequence.prompt_len, new, longest)
            self._waiting.popleft()
            if lease is None:
                self._say(Response(sequence.request_id, [], True, FinishReason.LENGTH))
                continue
            known = self._slots.headed(lease.slot) + 1 if self._is_head else lease.reused
            self._begin(sequence, lease, known)

    def _hold(self, sequence: EngineSequence, computed: int) -> None:
        sequence.computed = computed
        if self._is_head:  # The row of a token is at the position before it.
            self._slots.go_over(sequence.slot, min(computed, sequence.prompt_len) - 1)


class DrafterKind(Protocol):
    """A kind of draft."""

    def forms(self, config: TorchEngineConfig) -> dict[str, Form]:
        """Returns the tensors that its engine must have."""

    def load(self, config: TorchEngineConfig, tensors: Mapping[str, Tensor], home: Home) -> StepModel:
        """Returns the model of the draft."""


METHODS: Mapping[str, DrafterKind] = {"eagle3": eagle3, "eagle": eagle, "medusa": medusa, "layers": layers}
"""The kinds by the `draft.method` of an engine's configuration."""


def dependent_forms(config: TorchEngineConfig) -> dict[str, Form]:
    """Returns the tensors that the draft's engine must have."""
    assert config.draft is not None
    return METHODS[config.draft["method"]].forms(config)


def load_dependent(
    engine_dir: Path, config: TorchEngineConfig, home: Home, say: Callable[[Response], None]
) -> DependentRunner:
    """Returns the runner of the draft in a loaded target; raises `EngineLoadError`."""
    assert config.draft is not None
    own, theirs = (config.dtype, config.vocab_size), (home.config.dtype, home.config.vocab_size)
    if own != theirs:
        problem = f"is for a target of {_said(*own)}, but this one has {_said(*theirs)}; build it again"
        raise EngineLoadError(engine_dir, problem)
    device, limits = home.model.embedding.device, config.limits
    tensors = read_rank(engine_dir, dependent_forms(config), device)
    model = METHODS[config.draft["method"]].load(config, tensors, home)
    # In each round a head lacks the tokens that the target has just accepted.
    short = home.config.limits.max_draft_len + 2
    scheduler = StepScheduler(max(MAX_ROWS[device.type], 4 * short), short)
    longest = config.draft.get("count", limits.max_seq_len)
    return DependentRunner(limits, scheduler, model, home, longest, say)


def _said(dtype: torch.dtype, vocab_size: int) -> str:
    return f"{dtype} and {vocab_size} tokens"
