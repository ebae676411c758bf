"""The times of one completion, counted among those of its arm too."""

from __future__ import annotations

from collections.abc import Callable

from trtspec.serving.completion import Delta
from trtspec.serving.stats import ArmStats, Stats
from trtspec.serving.timeline import Timeline


class ArmTimeline(Timeline):
    """Counts for an arm when a completion had its first tokens, and how long each token after these took.

    The latter is one value for each completion: what comes at once is one token or several, so the times
    between two outputs of different arms do not compare.
    """

    __slots__ = ("_arm", "_first", "_later")

    def __init__(self, stats: Stats, arrived: float, clock: Callable[[], float], arm: ArmStats) -> None:
        super().__init__(stats, arrived, clock)
        self._arm, self._first, self._later = arm, 0.0, 0

    def told(self, delta: Delta) -> None:
        super().told(delta)
        if self._first:
            self._later += len(delta.token_ids)
        elif delta.token_ids:
            self._first = self._last
            self._arm.time_to_first_token.observe(self._first - self._arrived)
        if delta.completion is not None and self._later:
            self._arm.time_per_output_token.observe((self._last - self._first) / self._later)
