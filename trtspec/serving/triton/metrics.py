"""The export of the coordinator's metrics through Triton's custom metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

from trtspec.serving.metrics import (
    FAMILIES,
    MetricFamily,
    MetricSample,
    MetricType,
    counters,
    gauges,
    histograms,
)
from trtspec.serving.stats import Stats

PERIOD_S = 1.0
"""The seconds between two updates of counters, while there are requests."""
_LOAD = ("trtspec:num_requests_running", "trtspec:num_requests_waiting")


class TritonMetrics:
    """Exports `Stats`, each metric with these `labels`.

    `update` may be called often. It sends only changed values, since each costs a message, and counters once
    in `PERIOD_S`. When the last request ends, it sends the counters of no histogram at once.
    """

    def __init__(self, labels: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._labels, self._clock = dict(labels), clock
        self._began = self._due = clock()
        # Whole milliseconds are exact in every text format.
        self._started = round(time.time(), 3)
        self._done = 0
        self._series: dict[str, Series] = {}
        self.update(Stats())

    def update(self, stats: Stats) -> None:
        # Gauges are read first and sent last: a reader who sees that nothing runs any more finds all counted.
        present, now = list(gauges(stats, self._started)), self._clock()
        is_idle = not any(sample.value for sample in present if sample.name in _LOAD)
        done = sum(map(sum, (stats.rounds.copy().values(), stats.ended.values(), stats.failures.values())))
        is_due = now >= self._due
        if is_due or (is_idle and done != self._done):
            self._done = done
            for sample in counters(stats, now - self._began):
                self._send(sample)
        if is_due:
            self._due = now + PERIOD_S
            for sample in histograms(stats):
                self._send(sample)
        for sample in present:
            self._send(sample)

    def close(self) -> None:
        """Gives the metrics back to Triton, as `Series.close` does."""
        while self._series:
            self._series.popitem()[1].close()

    def _send(self, sample: MetricSample) -> None:
        if sample.name not in self._series:
            self._series[sample.name] = Series(FAMILIES[sample.name], self._labels)
        self._series[sample.name].set(sample)


class Series:
    """A metric family of Triton, with a metric for each set of labels that came so far."""

    def __init__(self, family: MetricFamily, labels: Mapping[str, str]) -> None:
        self._labels, self._kind = labels, family.kind
        kind = getattr(pb_utils.MetricFamily, family.kind.name)
        self._family = pb_utils.MetricFamily(family.name, family.meaning, kind)
        self._metrics: dict[tuple[str, ...], Any] = {}
        self._values: dict[tuple[str, ...], float] = {}

    def set(self, sample: MetricSample) -> None:
        key = tuple(sample.labels.values())
        if key not in self._metrics:
            labels = {**self._labels, **sample.labels}
            self._metrics[key], self._values[key] = self._family.Metric(labels=labels), 0
        if (change := sample.value - self._values[key]) == 0:
            return
        if self._kind is MetricType.GAUGE:
            # Increments of shares would not add up to exactly 0.
            self._metrics[key].set(sample.value)
        else:
            self._metrics[key].increment(change)
        self._values[key] = sample.value

    def close(self) -> None:
        """Gives the metrics back to Triton, while the model's process shares memory with it.

        A metric that is left when Python ends writes into memory that is gone, which kills the process and
        may leave a core file (python_backend, src/metric.cc, `Metric::Clear`).
        """
        self._metrics.clear()
        del self._family
