"""The times of one completion, which it adds to the histograms of all."""

from __future__ import annotations

from collections.abc import Callable

from trtspec.serving.completion import Delta, EndReason
from trtspec.serving.stats import ArmStats, Stats


class Timeline:
    """Records the times of one completion: its slot, its first tokens, its later outputs and its end.

    `arrived` is the arrival of its request, in seconds of `clock`. The time between two outputs is one value
    for any number of tokens in the second, as in vLLM's metrics, because that is the wait of a client.
    Outputs of different arms have different numbers of tokens. So for an `arm` it also records the time to
    the first tokens, and the mean time of each later token, which is one value for each completion.
    """

    __slots__ = ("_arm", "_arrived", "_clock", "_first", "_last", "_later", "_stats")

    def __init__(
        self, stats: Stats, arrived: float, clock: Callable[[], float], arm: ArmStats | None = None
    ) -> None:
        self._stats, self._arrived, self._clock, self._arm = stats, arrived, clock, arm
        self._first, self._last, self._later = 0.0, 0.0, 0

    def begin(self, num_input_tokens: int) -> None:
        """Records that the completion has its slot."""
        self._stats.prompt_tokens += num_input_tokens
        self._stats.queue_time.observe(self._clock() - self._arrived)

    def add(self, delta: Delta) -> None:
        """Records the output of a round or burst."""
        stats, arm, now = self._stats, self._arm, self._clock()
        if count := len(delta.token_ids):
            stats.generation_tokens += count
            if self._last:
                stats.inter_token_latency.observe(now - self._last)
                self._later += count
            else:
                stats.time_to_first_token.observe(now - self._arrived)
                if arm:
                    arm.time_to_first_token.observe(now - self._arrived)
                self._first = now
            self._last = now
        if delta.completion is not None:
            stats.ended["length" if delta.completion.end_reason is EndReason.LENGTH else "stop"] += 1
            stats.e2e_latency.observe(now - self._arrived)
            if arm and self._later:
                arm.time_per_output_token.observe((self._last - self._first) / self._later)
