"""The metrics of a coordinator: their names, types and meanings, and their values in its `Stats`.

Names are vLLM's with the prefix `trtspec:` where vLLM has the metric. A histogram is a set of counters, as
Prometheus stores it: one for each bucket, with the label `le`, one of the sum and one of the number of
values. Triton's own histogram type sends each value in a message of 20 us, which a round cannot afford.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from trtspec.serving.stats import Histogram, RolloutStats, SpeculationCounts, Stats

PREFIX = "trtspec:"
COUNTED = f"{PREFIX}counted_seconds"
STARTED = f"{PREFIX}start_time_seconds"
KV_FRACTION = "nv_trt_llm_kv_cache_block_metrics"
"""NVIDIA's gauge of a KV cache. With the `kv_cache_block_type` `fraction` it is the share in use."""


class MetricType(Enum):
    """The type of a metric, by Prometheus's name of it."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric with a value for each set of its labels."""

    name: str
    meaning: str
    kind: MetricType


@dataclass(frozen=True, slots=True)
class MetricSample:
    """The value of a metric for one set of labels."""

    name: str
    value: float
    labels: dict[str, str]


def gauges(stats: Stats, started: float) -> Iterator[MetricSample]:
    """Yields the gauges. `started` is the time when counting started, in seconds of Unix time.

    If the target reports its KV use, they include the three gauges that the endpoint picker of the Gateway
    API Inference Extension reads from a server of the type `triton-tensorrt-llm`. Where NVIDIA's C++ backend
    runs the engines, it reports these three itself.
    """
    yield MetricSample(STARTED, started, {})
    yield MetricSample("trtspec:num_requests_running", stats.running, {})
    yield MetricSample("trtspec:num_requests_waiting", stats.waiting, {})
    yield MetricSample("trtspec:max_num_requests_running", stats.places, {})
    yield MetricSample("trtspec:max_num_requests_waiting", stats.queue_size, {})
    yield MetricSample("trtspec:longest_wait_seconds", stats.longest_wait_s, {})
    yield MetricSample("trtspec:draft_available", int(stats.draft_available), {})
    yield MetricSample("trtspec:speculation_share", stats.rollout.speculation_share, {})
    yield MetricSample("trtspec:shadow_share", stats.rollout.shadow_share, {})
    yield MetricSample("trtspec:rollout_file_malformed", int(stats.rollout.is_malformed), {})
    for engine, use in list(stats.kv_use.items()):
        yield MetricSample("trtspec:kv_cache_usage_perc", use, {"engine": engine})
    if "target" in stats.kv_use:
        yield MetricSample("nv_trt_llm_request_metrics", stats.waiting, {"request_type": "waiting"})
        yield MetricSample("nv_trt_llm_request_metrics", stats.running, {"request_type": "scheduled"})
        fraction = {"kv_cache_block_type": "fraction"}
        yield MetricSample(KV_FRACTION, stats.kv_use["target"], fraction)


def counters(stats: Stats, seconds: float) -> Iterator[MetricSample]:
    """Yields the counters since the start, `seconds` ago, by names that end in `_total`, as Prometheus asks.

    For one release, each comes by its older name too.
    """
    for sample in _counters(stats, seconds):
        yield sample
        yield MetricSample(f"{sample.name}_total", sample.value, sample.labels)


def _counters(stats: Stats, seconds: float) -> Iterator[MetricSample]:
    yield MetricSample(COUNTED, seconds, {})
    for origin, counts in stats.by_origin.items():
        yield from _speculation("trtspec:spec_decode", counts, {"origin": origin})
    rounds = list(stats.rounds.items())
    for length, number in rounds:
        yield MetricSample("trtspec:rounds", number, {"num_draft_tokens": str(length)})
    yield MetricSample(
        "trtspec:num_draft_tokens_chosen", sum(length * number for length, number in rounds), {}
    )
    times = stats.round_times
    yield MetricSample("trtspec:round_draft_seconds", times.draft, {})
    yield MetricSample("trtspec:round_verification_seconds", times.verification, {})
    yield MetricSample("trtspec:round_overhead_seconds", times.overhead, {})
    for engine, reuse in list(stats.kv_reuse.items()):
        yield MetricSample("trtspec:prefix_cache_queries", reuse.asked, {"engine": engine})
        yield MetricSample("trtspec:prefix_cache_hits", reuse.found, {"engine": engine})
    for reason, number in stats.fallbacks.items():
        yield MetricSample("trtspec:fallbacks", number, {"reason": reason})
    for kind, number in stats.failures.items():
        yield MetricSample("trtspec:request_errors", number, {"kind": kind})
    for reason, number in stats.ended.items():
        yield MetricSample("trtspec:request_success", number, {"finished_reason": reason})
    yield MetricSample("trtspec:prompt_tokens", stats.prompt_tokens, {})
    yield MetricSample("trtspec:generation_tokens", stats.generation_tokens, {})
    yield from _rollout(stats.rollout)


def _rollout(rollout: RolloutStats) -> Iterator[MetricSample]:
    """Yields the counters of a roll-out, which are 0 without one."""
    for name, arm in rollout.arms.items():
        yield MetricSample("trtspec:rollout_requests", arm.requests, {"arm": name})
        yield MetricSample("trtspec:rollout_request_errors", arm.failures, {"arm": name})
    yield from _speculation("trtspec:shadow", rollout.shadow, {})
    for reason, number in rollout.shadow_fallbacks.items():
        if number:
            yield MetricSample("trtspec:shadow_fallbacks", number, {"reason": reason})


def _speculation(name: str, counts: SpeculationCounts, labels: dict[str, str]) -> Iterator[MetricSample]:
    yield MetricSample(f"{name}_num_drafts", counts.num_spec_steps, labels)
    yield MetricSample(f"{name}_num_draft_tokens", counts.num_draft_tokens, labels)
    yield MetricSample(f"{name}_num_accepted_tokens", counts.num_accepted_draft_tokens, labels)
    for position, accepted in enumerate(counts.accepted_per_position[:]):
        at = {**labels, "position": str(position)}
        yield MetricSample(f"{name}_num_accepted_tokens_per_pos", accepted, at)


def histograms(stats: Stats) -> Iterator[MetricSample]:
    """Yields the counters of the histograms."""
    yield from _histogram("trtspec:time_to_first_token_seconds", stats.time_to_first_token, {})
    yield from _histogram("trtspec:inter_token_latency_seconds", stats.inter_token_latency, {})
    yield from _histogram("trtspec:e2e_request_latency_seconds", stats.e2e_latency, {})
    yield from _histogram("trtspec:request_queue_time_seconds", stats.queue_time, {})
    for arm in stats.rollout.arms.values():
        if arm.requests:
            for name, spread in (
                ("trtspec:rollout_time_to_first_token_seconds", arm.time_to_first_token),
                ("trtspec:rollout_time_per_output_token_seconds", arm.time_per_output_token),
            ):
                yield MetricSample(f"{name}_squares", spread.squares, {"arm": arm.name})
                yield from _histogram(name, spread, {"arm": arm.name})


def _histogram(name: str, histogram: Histogram, labels: dict[str, str]) -> Iterator[MetricSample]:
    cumulative, total = histogram.cumulative(), histogram.sum
    # A reader may see only some of these updated. The count comes first and the bucket of all values last, so
    # if these two are equal, all between them belong together.
    yield MetricSample(f"{name}_count", cumulative[-1], labels)
    yield MetricSample(f"{name}_sum", total, labels)
    for bound, number in zip(histogram.bounds, cumulative, strict=False):
        yield MetricSample(f"{name}_bucket", number, {**labels, "le": str(bound)})
    yield MetricSample(f"{name}_bucket", cumulative[-1], {**labels, "le": "+Inf"})


_MEANINGS = {
    MetricType.GAUGE: {
        "start_time_seconds": "Unix time at which counting began; it identifies the process",
        "num_requests_running": "Running completions",
        "num_requests_waiting": "Completions that wait for a slot",
        "max_num_requests_running": "Slots: the largest number of running completions",
        "max_num_requests_waiting": "Largest number of waiting completions",
        "longest_wait_seconds": "Longest wait of a waiting completion so far",
        "draft_available": "1 while the draft engine is in use, 0 while it rests",
        "speculation_share": "Share of requests that have drafts, 0 to 1",
        "shadow_share": "Share of requests whose drafts are only scored, 0 to 1",
        "rollout_file_malformed": "1 while the file of the roll-out is malformed",
        "kv_cache_usage_perc": "Largest recent share of the KV cache held by requests, 0 to 1",
    },
    MetricType.COUNTER: {
        "spec_decode_num_drafts": "Drafts verified",
        "spec_decode_num_draft_tokens": "Tokens drafted",
        "spec_decode_num_accepted_tokens": "Draft tokens accepted",
        "spec_decode_num_accepted_tokens_per_pos": "Draft tokens accepted, by their position from 0",
        "rounds": "Rounds by the chosen K; 0 counts bursts of the target alone",
        "num_draft_tokens_chosen": "Sum of the K of all rounds",
        "prefix_cache_queries": "Prompt tokens of all requests to an engine, one request a round",
        "prefix_cache_hits": "Prompt tokens that the engine's KV cache already had",
        "round_draft_seconds": "Seconds in which rounds waited for their drafts",
        "round_verification_seconds": "Seconds in which rounds waited for their verifications",
        "round_overhead_seconds": "Seconds from a verification to the next round",
        "fallbacks": "Rounds and bursts without a draft, by reason",
        "request_errors": "Failed requests, by reason",
        "request_success": "Completions by reason of their end",
        "counted_seconds": "Seconds from the start to the last update of the counters, once a second",
        "prompt_tokens": "Tokens of prompts",
        "generation_tokens": "Tokens generated",
        "rollout_requests": "Completions that began during a roll-out, by arm",
        "rollout_request_errors": "Completions of a roll-out that failed or timed out, by arm",
        "shadow_num_drafts": "Shadow drafts, scored beside plain decoding",
        "shadow_num_draft_tokens": "Tokens of shadow drafts",
        "shadow_num_accepted_tokens": "Tokens of shadow drafts that the target would have accepted",
        "shadow_num_accepted_tokens_per_pos": "Accepted tokens of shadow drafts, by their position from 0",
        "shadow_fallbacks": "Rounds without a shadow draft, by reason",
    },
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": "Time from the request to its first tokens",
    "inter_token_latency_seconds": "Time between one output of a completion and the next",
    "e2e_request_latency_seconds": "Time from the request to its end",
    "request_queue_time_seconds": "Time from the request to its slot",
}
_SPREADS = {
    "rollout_time_to_first_token_seconds": "Time from the request to its first tokens, by arm",
    "rollout_time_per_output_token_seconds": "Time for each token after the first output, by arm",
}
_PARTS = {"bucket": "values up to le", "sum": "sum of values", "count": "number of values"}
_NVIDIAS = (
    MetricFamily("nv_trt_llm_request_metrics", "TRT LLM request metrics", MetricType.GAUGE),
    MetricFamily(KV_FRACTION, "TRT LLM KV cache block metrics", MetricType.GAUGE),
)
FAMILIES = {
    family.name: family
    for family in (
        *(
            MetricFamily(f"{PREFIX}{name}{end}", text, kind)
            for kind, of in _MEANINGS.items()
            for name, text in of.items()
            for end in (("", "_total") if kind is MetricType.COUNTER else ("",))
        ),
        *(
            MetricFamily(f"{PREFIX}{name}_{part}", f"{meaning}: {what}", MetricType.COUNTER)
            for of, parts in (
                (_HISTOGRAMS, _PARTS),
                (_SPREADS, {**_PARTS, "squares": "sum of their squares"}),
            )
            for name, meaning in of.items()
            for part, what in parts.items()
        ),
        *_NVIDIAS,
    )
}
"""All metrics by their names."""
