"""The runner of a draft that lives in its target."""

from __future__ import annotations

from collections.abc import Callable

from trtspec.serving.executor import FinishReason, Limits, Response
from trtspec.serving.executors.torch.dependents.head import AttachedHead
from trtspec.serving.executors.torch.dependents.home import Home
from trtspec.serving.executors.torch.model import StepModel
from trtspec.serving.executors.torch.runner import Runner
from trtspec.serving.executors.torch.scheduler import StepScheduler
from trtspec.serving.executors.torch.sequence import Sequence


class DependentRunner(Runner):
    """Drafts in the slots of the target, behind the texts that it has read.

    A request whose text the target has not read, but for the last token, ends at once with its `LENGTH` and
    no token; so does one for which the target's cache has no room. A draft is `longest` tokens at most. What
    a slot holds of the target stays as it is, whether the draft ends, is cancelled or fails.
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

    def _hold(self, sequence: Sequence, computed: int) -> None:
        sequence.computed = computed
        if self._is_head:  # Its row of a token lies at the position before.
            self._slots.go_over(sequence.slot, min(computed, sequence.prompt_len) - 1)
