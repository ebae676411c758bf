"""The times of one completion, which it adds to the histograms of all."""

from __future__ import annotations

from collections.abc import Callable

from trtspec.serving.completion import Delta, EndReason
from trtspec.serving.stats import ArmStats, Stats


class Timeline:
    """Records the times of one completion: its slot, its first tokens, its later outputs and its end.

    `arrived` is the arrival of its request, in seconds of `clock`. The time between two outputs is one value
    for any number of tokens in the second, as in vLLM's metrics, because that is the wait of a client.
    """

    __slots__ = ("_arrived", "_clock", "_last", "_stats")

    def __init__(self, stats: Stats, arrived: float, clock: Callable[[], float]) -> None:
        self._stats, self._arrived, self._clock = stats, arrived, clock
        self._last = 0.0

    def begin(self, num_input_tokens: int) -> None:
        """Records that the completion has its slot."""
        self._stats.prompt_tokens += num_input_tokens
        self._stats.queue_time.observe(self._clock() - self._arrived)

    def add(self, delta: Delta) -> None:
        """Records the output of a round or burst."""
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
    """Records for an arm also the time to the first tokens, and the mean time of each later token.

    The mean is one value for each completion. Outputs of different arms have different numbers of tokens, so
    the times between their outputs do not compare.
    """

    __slots__ = ("_arm", "_first", "_later")

    def __init__(self, stats: Stats, arrived: float, clock: Callable[[], float], arm: ArmStats) -> None:
        super().__init__(stats, arrived, clock)
        self._arm, self._first, self._later = arm, 0.0, 0

    def add(self, delta: Delta) -> None:
        super().add(delta)
        if self._first:
            self._later += len(delta.token_ids)
        elif delta.token_ids:
            self._first = self._last
            self._arm.time_to_first_token.observe(self._first - self._arrived)
        if delta.completion is not None and self._later:
            self._arm.time_per_output_token.observe((self._last - self._first) / self._later)
