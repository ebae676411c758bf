"""The roll-out of one coordinator: its state, and the arm of each request."""

from __future__ import annotations

import logging

from trtspec.serving.completion import CompletionRequest
from trtspec.serving.rollout.file import RolloutReading
from trtspec.serving.rollout.state import RolloutState, position_of
from trtspec.serving.state import CompletionState
from trtspec.serving.stats import ArmStats, RolloutStats

log = logging.getLogger(__name__)


class Rollout:
    """Assigns requests to arms. Without a file the share `usual` of them has drafts.

    It counts in `stats`, and is used on the coordinator's loop.
    """

    def __init__(self, usual: float, stats: RolloutStats) -> None:
        self._usual, self._stats = RolloutState(share=usual), stats
        self._has_file = False
        self._enter(self._usual)

    @property
    def is_on(self) -> bool:
        """True if requests are assigned to arms. Without a file, and with drafts for all, they are not."""
        return self._has_file or self.state.share < 1

    def take(self, reading: RolloutReading) -> None:
        """Follows the file from the next request on. A malformed file changes nothing."""
        if reading.problem:
            self._stats.is_malformed = True
            log.error(
                "the file of the roll-out %s; it stays at %s of %.4g",
                reading.problem,
                self.state.mode,
                self.state.share,
            )
            return
        self._stats.is_malformed = False
        self._has_file = reading.state is not None
        self._enter(reading.state or self._usual)

    def arm(self, request: CompletionRequest, state: CompletionState) -> ArmStats | None:
        """Returns the arm of a completion; None if its options forbid drafts in any case."""
        if not state.num_draft_tokens:
            return None
        position = position_of(request.tenant, request.user, state.text.packed(state.num_input_tokens))
        arm = self._stats.arms[self.state.arm(position)]
        arm.requests += 1
        return arm

    def _enter(self, state: RolloutState) -> None:
        self.state = state
        self._stats.speculation_share = state.share_of("speculate")
        self._stats.shadow_share = state.share_of("shadow")
