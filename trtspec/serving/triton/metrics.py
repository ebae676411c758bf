"""The metrics of the coordinator, exported by Triton under vLLM's names with the prefix `trtspec:`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

from trtspec.serving.stats import Stats


class Metrics:
    """Exports `Stats` as Triton metrics; `update` sends only changes, since each costs a message.

    What is counted of drafts has the label `origin`: the sum over it is what vLLM's metric says.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = dict(labels)
        counter, gauge = pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.GAUGE
        self._drafts = Series("spec_decode_num_drafts", "Drafts verified", counter)
        self._drafted = Series("spec_decode_num_draft_tokens", "Tokens drafted", counter)
        self._accepted = Series("spec_decode_num_accepted_tokens", "Draft tokens accepted", counter)
        self._per_position = Series(
            "spec_decode_num_accepted_tokens_per_pos", "Draft tokens accepted, by their place from 0", counter
        )
        self._failures = Series("draft_failures", "Drafts that failed or took too long", counter)
        self._refused = Series("num_requests_refused", "Requests that found no place", counter)
        self._timed_out = Series("num_requests_timed_out", "Requests that were not whole in time", counter)
        self._available = Series("draft_available", "1 while the draft engine is in use, 0 at rest", gauge)
        self._running = Series("num_requests_running", "Requests at work", gauge)
        self._waiting = Series("num_requests_waiting", "Requests that wait for a place", gauge)
        self._wait = Series("longest_wait_seconds", "How long the one that waits longest has waited", gauge)
        self.update(Stats())

    def update(self, stats: Stats) -> None:
        for origin, speculation in stats.by_origin.items():
            labels = {**self._labels, "origin": origin}
            self._drafts.set(speculation.num_spec_steps, labels)
            self._drafted.set(speculation.num_draft_tokens, labels)
            self._accepted.set(speculation.num_accepted_draft_tokens, labels)
            for position, accepted in enumerate(speculation.accepted_per_position):
                self._per_position.set(accepted, {**labels, "position": str(position)})
        self._failures.set(stats.draft_failures, self._labels)
        self._refused.set(stats.refused, self._labels)
        self._timed_out.set(stats.timed_out, self._labels)
        self._available.set(int(stats.draft_available), self._labels)
        self._running.set(stats.running, self._labels)
        self._waiting.set(stats.waiting, self._labels)
        self._wait.set(stats.longest_wait_s, self._labels)


class Series:
    """A metric family, with a metric for each set of labels that it has been set with."""

    def __init__(self, name: str, meaning: str, kind: Any) -> None:
        self._family = pb_utils.MetricFamily(f"trtspec:{name}", meaning, kind)
        self._metrics: dict[tuple[str, ...], Any] = {}
        self._values: dict[tuple[str, ...], float] = {}

    def set(self, value: float, labels: dict[str, str]) -> None:
        key = tuple(labels.values())
        if key not in self._metrics:
            self._metrics[key], self._values[key] = self._family.Metric(labels=labels), 0
        if change := value - self._values[key]:
            self._metrics[key].increment(change)
            self._values[key] = value
