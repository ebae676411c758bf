"""The times of one completion, counted among those of all."""

from __future__ import annotations

from collections.abc import Callable

from trtspec.serving.completion import Delta, EndReason
from trtspec.serving.stats import ArmStats, Stats


class Timeline:
    """Counts when one completion got its place, its first tokens and the ones after, and its end.

    `arrived` is when it was asked for, on the `clock`, in seconds. The time between two outputs is one value
    whatever the number of tokens in the second, as in vLLM's metrics: it is what a client waits for.
    """

    __slots__ = ("_arrived", "_clock", "_last", "_stats")

    def __init__(self, stats: Stats, arrived: float, clock: Callable[[], float]) -> None:
        self._stats, self._arrived, self._clock = stats, arrived, clock
        self._last = 0.0

    def begin(self, num_input_tokens: int) -> None:
        """Notes that the completion has its place."""
        self._stats.prompt_tokens += num_input_tokens
        self._stats.queue_time.observe(self._clock() - self._arrived)

    def told(self, delta: Delta) -> None:
        """Notes what a round or burst gave."""
        stats, now = self._stats, self._clock()
        if delta.token_ids:
            stats.generation_tokens += len(delta.token_ids)
            if self._last:
                stats.inter_token_latency.observe(now - self._last)
            else:
                stats.time_to_first_token.observe(now - self._arrived)
            self._last = now
        if delta.completion is not None:
            stats.ended["length" if delta.completion.end_reason is EndReason.LENGTH else "stop"] += 1
            stats.e2e_latency.observe(now - self._arrived)


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
