"""The roll-out of one coordinator: where it stands, and of which arm a request is."""

from __future__ import annotations

import logging

from trtspec.serving.completion import CompletionRequest
from trtspec.serving.rollout.file import RolloutReading
from trtspec.serving.rollout.state import RolloutState, place_of
from trtspec.serving.state import CompletionState
from trtspec.serving.stats import ArmStats, RolloutStats

log = logging.getLogger(__name__)


class Rollout:
    """Says which requests have drafts; `usual` is the share that does where no file says anything else.

    What is counted is in `stats`. It is used on the coordinator's loop.
    """

    def __init__(self, usual: float, stats: RolloutStats) -> None:
        self._usual, self._stats = RolloutState(share=usual), stats
        self._is_told = False
        self._stand(self._usual)

    @property
    def is_on(self) -> bool:
        """True if requests are assigned to arms. Without a file, and with drafts for all, they are not."""
        return self._is_told or self.state.share < 1

    def take(self, reading: RolloutReading) -> None:
        """Goes by what the file says from the next request on; a file with a fault changes nothing."""
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
        self._is_told = reading.state is not None
        self._stand(reading.state or self._usual)

    def arm(self, wanted: CompletionRequest, state: CompletionState) -> ArmStats | None:
        """Returns the arm of a completion; None for one that has no drafts in any case, by its options."""
        if not state.num_draft_tokens:
            return None
        place = place_of(wanted.tenant, wanted.user, state.text.packed(state.num_input_tokens))
        arm = self._stats.arms[self.state.arm(place)]
        arm.requests += 1
        return arm

    def _stand(self, state: RolloutState) -> None:
        self.state = state
        self._stats.speculation_share = state.share_of("speculate")
        self._stats.shadow_share = state.share_of("shadow")
