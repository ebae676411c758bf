"""The times of one completion, counted among those of all."""

from __future__ import annotations

from collections.abc import Callable

from trtspec.serving.completion import Delta, EndReason
from trtspec.serving.stats import Stats


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
