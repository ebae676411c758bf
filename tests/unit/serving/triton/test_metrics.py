"""When values go to Triton, each of which costs a message."""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from trtspec.serving.stats import Stats

MODULE = "trtspec.serving.triton.metrics"


class Made(SimpleNamespace):
    """A family, or a metric of one."""

    __slots__ = ("__weakref__",)


class Triton:
    """The `MetricFamily` of `triton_python_backend_utils`; `sent` has the metric of each message."""

    COUNTER, GAUGE = "counter", "gauge"

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}
        self.sent: list[str] = []
        self.made: list[Any] = []

    def __call__(self, name: str, meaning: str, kind: str) -> Any:
        assert kind in ("counter", "gauge")
        assert meaning

        def metric(labels: dict[str, str]) -> Any:
            key = (name, *(f"{label}={value}" for label, value in labels.items()))
            assert key not in self.values, "Triton would return the same metric twice"
            self.values[key] = 0

            def increment(change: float) -> None:
                assert change > 0
                self.values[key] += change
                self.sent.append(name)

            def put(value: float) -> None:
                self.values[key] = value
                self.sent.append(name)

            self.made.append(Made(increment=increment) if kind == "counter" else Made(set=put))
            return self.made[-1]

        self.made.append(Made(Metric=metric))
        return self.made[-1]


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[Triton]:
    triton = Triton()
    utils: Any = SimpleNamespace(MetricFamily=triton)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield triton
    sys.modules.pop(MODULE, None)


def test_counters_are_told_once_a_second_and_gauges_at_once(triton: Triton) -> None:
    now = [0.0]
    metrics = importlib.import_module(MODULE).TritonMetrics({"model": "pair"}, lambda: now[0])
    assert ("trtspec:fallbacks", "model=pair", "reason=policy") in triton.values
    stats = Stats(running=1)
    tokens, running = (
        ("trtspec:generation_tokens", "model=pair"),
        ("trtspec:num_requests_running", "model=pair"),
    )
    triton.sent.clear()
    for _ in range(30):
        stats.generation_tokens += 10
        metrics.update(stats)
        now[0] += 0.05
    # At 0.05 s steps one second passes once: the first look came with the first update.
    assert triton.sent.count(tokens[0]) == 1
    assert 0 < triton.values[tokens] < stats.generation_tokens
    assert (triton.sent.count(running[0]), triton.values[running]) == (1, 1)
    assert triton.values["trtspec:counted_seconds", "model=pair"] == pytest.approx(1.0)


def test_when_nothing_runs_any_more_all_is_told(triton: Triton) -> None:
    now = [0.0]
    metrics = importlib.import_module(MODULE).TritonMetrics({"model": "pair"}, lambda: now[0])
    stats = Stats(running=1)
    metrics.update(stats)
    triton.sent.clear()
    stats.running, stats.generation_tokens = 0, 10
    stats.ended["stop"] += 1
    metrics.update(stats)
    assert triton.values["trtspec:generation_tokens", "model=pair"] == 10
    # Who sees the gauge finds the counter.
    assert triton.sent.index("trtspec:generation_tokens") < triton.sent.index("trtspec:num_requests_running")
    triton.sent.clear()
    metrics.update(stats)
    assert triton.sent == []


def test_when_counting_began_is_told_once(triton: Triton, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(MODULE)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: 1234.56789))
    metrics = module.TritonMetrics({"model": "pair"}, lambda: 0.0)
    assert triton.values["trtspec:start_time_seconds", "model=pair"] == 1234.568
    triton.sent.clear()
    metrics.update(Stats(running=1))
    assert "trtspec:start_time_seconds" not in triton.sent


def test_a_client_that_leaves_leaves_its_rounds_counted(triton: Triton) -> None:
    """Its request is not over yet when its place is free, and has no end that is counted."""
    metrics = importlib.import_module(MODULE).TritonMetrics({"model": "pair"}, lambda: 0.0)
    stats = Stats(running=1)
    metrics.update(stats)
    stats.rounds[4] += 3
    stats.by_origin["engine"].record(4, 2)
    stats.running = 0
    metrics.update(stats)
    drafts = ("trtspec:spec_decode_num_drafts", "model=pair", "origin=engine")
    assert triton.values[drafts] == 1
    assert triton.values["trtspec:num_requests_running", "model=pair"] == 0


def test_all_are_given_back(triton: Triton) -> None:
    metrics = importlib.import_module(MODULE).TritonMetrics({"model": "pair"})
    made = [weakref.ref(each) for each in triton.made]
    triton.made.clear()
    assert len(made) > 20
    metrics.close()
    assert not any(each() for each in made)
