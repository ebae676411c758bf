"""What is counted of rounds, requests and times, and how it is exported."""

from __future__ import annotations

import math
from bisect import insort
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.languages import TARGET, Run, drafting_for
from tests.fakes.scripted_executor import ScriptedExecutor, echo
from trtspec.deployment.figures import quantile
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.drafters.source import Drafting
from trtspec.serving.executor import Guide, GuideType, KvReuse, SamplingConfig
from trtspec.serving.metrics import FAMILIES, MetricType, counters, gauges, histograms
from trtspec.serving.state import unsplittable_options
from trtspec.serving.stats import (
    BETWEEN_TOKENS_S,
    FALLBACKS,
    FIRST_TOKEN_S,
    REQUEST_S,
    Histogram,
    SpeculationCounts,
    Stats,
)
from trtspec.serving.tokenizer import Tokenizer

ALONE = CompletionRequest(prompt_token_ids=[1], max_tokens=8, end_id=NO_END)


@given(st.lists(st.one_of(st.floats(0, 4000), st.sampled_from(FIRST_TOKEN_S))))
def test_a_bucket_has_what_is_at_most_its_bound(values: list[float]) -> None:
    histogram, ordered = Histogram(FIRST_TOKEN_S), list[float]()
    for value in values:
        histogram.observe(value)
        insort(ordered, value)
    assert histogram.cumulative() == [
        *(sum(value <= bound for value in ordered) for bound in FIRST_TOKEN_S),
        len(ordered),
    ]
    assert histogram.sum == pytest.approx(sum(values))


VLLMS_BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
VLLMS_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


def test_vllms_buckets_are_among_ours() -> None:
    """Those of vLLM 0.25 to 0.33, `vllm/v1/metrics/loggers.py`."""
    assert len(FIRST_TOKEN_S) == 22
    assert set(VLLMS_BETWEEN_TOKENS) < set(BETWEEN_TOKENS_S)
    assert set(VLLMS_REQUEST) < set(REQUEST_S)
    for bounds in (FIRST_TOKEN_S, BETWEEN_TOKENS_S, REQUEST_S):
        assert list(bounds) == sorted(set(bounds))


@pytest.mark.parametrize("milliseconds", [0.8, 3, 6, 9, 13, 18, 30, 45])
def test_a_quantile_of_milliseconds_is_near_the_truth(milliseconds: float) -> None:
    """All values of a bucket count as spread over it, so its width is how wrong a quantile may be."""
    histogram = Histogram(BETWEEN_TOKENS_S)
    for _ in range(100):
        histogram.observe(milliseconds / 1000)
    bounds = [*histogram.bounds, math.inf]
    said = quantile(0.95, list(zip(bounds, map(float, histogram.cumulative()), strict=True)))
    assert said * 1000 == pytest.approx(milliseconds, rel=0.65)


def test_every_value_is_of_a_family_and_no_two_are_the_same() -> None:
    stats = Stats(kv_use={"target": 0.5, "draft": 0.25})
    stats.by_origin["engine"].record(4, 2)
    stats.rounds[4] += 1
    stats.rollout.shadow.record(4, 2)
    stats.rollout.shadow_fallbacks["nothing_found"] += 1
    stats.kv_reuse["target"] = KvReuse(asked=10, found=4)
    stats.rollout.arms["plain"].requests += 1
    counted = [*counters(stats, 1.0), *histograms(stats)]
    for samples, kind in ((counted, MetricType.COUNTER), (list(gauges(stats, 1.0)), MetricType.GAUGE)):
        known = {(sample.name, *sample.labels.items()) for sample in samples}
        assert len(known) == len(samples)
        assert {sample.name for sample in samples} == {
            name for name, family in FAMILIES.items() if family.kind is kind
        }


def test_an_engine_that_does_not_say_its_kv_use_has_no_gauge() -> None:
    names = {sample.name for sample in gauges(Stats(), 1.0)}
    assert not {name for name in names if "kv_cache" in name or name.startswith("nv_")}
    assert "trtspec:num_requests_waiting" in names


def test_every_option_that_forbids_drafts_is_a_reason() -> None:
    sampling = SamplingConfig(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=1.0)
    options = unsplittable_options(sampling, Guide(GuideType.JSON), resumes_guides=False)
    assert len(options) == 4
    assert set(options) < set(FALLBACKS)


@pytest.mark.parametrize(
    ("reason", "asked"),
    [
        ("num_draft_tokens", {"num_draft_tokens": 0}),
        ("presence_penalty", {"sampling": SamplingConfig(presence_penalty=1.0)}),
        ("min_tokens", {"sampling": SamplingConfig(min_tokens=3), "end_id": 299}),
        ("last_token", {"max_tokens": 1}),
    ],
)
def test_a_request_that_gets_no_drafts_says_why(
    run: Run, tokenizer: Tokenizer, reason: str, asked: dict[str, Any]
) -> None:
    async def main() -> dict[str, int]:
        target = ScriptedExecutor(TARGET, echo(range(50, 90), 5))
        coordinator = assemble(target, drafting_for(target, 1.0), tokenizer)
        await coordinator.complete(CompletionRequest(**{"prompt_token_ids": [1], "max_tokens": 8, **asked}))
        return coordinator.stats.fallbacks

    found = {name: number for name, number in run(main()).items() if number}
    assert found.pop(reason) == 1
    assert set(found) <= {"last_token", "draft_ended"}


def test_a_text_that_does_not_repeat_itself_has_nothing_to_look_up(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> Stats:
        target = ScriptedExecutor(TARGET, echo(range(50, 90), 5))
        lookup = Drafting("ngram", {"prompt_lookup_min": 2, "prompt_lookup_max": 4})
        coordinator = assemble(target, None, tokenizer, drafting=lookup)
        await coordinator.complete(ALONE)
        return coordinator.stats

    stats = run(main())
    assert stats.fallbacks["nothing_found"] == stats.rounds[0] > 0


def test_without_a_drafter_nothing_falls_back(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> Stats:
        coordinator = assemble(ScriptedExecutor(TARGET, echo(range(50, 90), 5)), None, tokenizer)
        await coordinator.complete(ALONE)
        return coordinator.stats

    stats = run(main())
    assert (sum(stats.fallbacks.values()), dict(stats.rounds)) == (0, {0: 1})
    assert (stats.prompt_tokens, stats.generation_tokens) == (1, 8)


def test_counts_are_vllms() -> None:
    counts = SpeculationCounts()
    for num_draft, num_accepted in [(3, 3), (3, 1), (2, 0), (4, 2)]:
        counts.record(num_draft, num_accepted)
    assert counts.num_spec_steps == 4
    assert counts.num_draft_tokens == 12
    assert counts.num_accepted_draft_tokens == 6
    assert counts.accepted_per_position == [3, 2, 1, 0]
    assert counts.mean_acceptance_length == 1 + 6 / 4
    assert counts.draft_acceptance_rate == 0.5


def test_nothing_drafted() -> None:
    """A step of the target alone makes one token, as in README.md."""
    assert (SpeculationCounts().mean_acceptance_length, SpeculationCounts().draft_acceptance_rate) == (1, 0)
