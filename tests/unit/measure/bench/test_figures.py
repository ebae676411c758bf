"""The figures of blocks whose requests are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trtspec.client.endpoint import DraftCounts
from trtspec.client.scrape import parse
from trtspec.measure.bench.inside import Meanwhile, is_idle
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import DraftAcceptance, Inside, MeanRoundTimes, OfferedLoad, Targets
from trtspec.measure.bench.sample import Block, LoadSamples, RequestSample
from trtspec.measure.bench.summary import figures, keeps, notes
from trtspec.measure.workloads.workload import Workload

# Due at 1, sent late at 1.5; text at 2, 3 and 4, of five tokens.
SAMPLE = RequestSample("p", "c", 0, 1.0, 1.5, 4.0, (2.0, 3.0, 4.0), 7, 5)


def test_latencies_count_from_when_a_request_was_due() -> None:
    assert (SAMPLE.time_to_first_token, SAMPLE.end_to_end, SAMPLE.inter_token) == (1.0, 3.0, 0.5)
    assert replace(SAMPLE, output_tokens=1).inter_token is None


def test_tokens_a_second_are_those_of_the_full_load() -> None:
    """By 3 s, one answer had ended, and two of the three pieces of another were there."""
    ended = replace(SAMPLE, ended=3.0, pieces=(2.0, 3.0))
    assert Block((SAMPLE, ended), 4.0, 3.0).tokens_per_second == pytest.approx((5 * 2 / 3 + 5) / 3)
    assert Block((SAMPLE, replace(SAMPLE, error="failed")), 4.0, 4.0).tokens_per_second == 1.25
    assert Block((), 0.0, 0.0).tokens_per_second == 0


def test_figures_count_what_failed_beside_what_did_not() -> None:
    failed = RequestSample("q", "c", 0, 0.0, 0.0, 9.0, error="refused", problem="503")
    found = figures(
        [Block((SAMPLE, failed), 5.0, 5.0), Block((SAMPLE, SAMPLE), 5.0, 5.0)],
        Targets(time_to_first_token=1.0, end_to_end=3.5),
        0.95,
        Inside(),
    )
    assert (found.requests, found.errors, found.failed) == (4, {"refused": 1}, 1)
    assert (found.input_tokens, found.output_tokens, found.seconds) == (21, 15, 10.0)
    assert found.blocks == (1.0, 2.0)
    assert found.tokens_per_second.value == pytest.approx(2**0.5)
    assert found.end_to_end is not None
    assert (found.end_to_end.count, found.end_to_end.p99) == (3, 3.0)
    assert found.between_pieces is not None
    assert (found.between_pieces.count, found.between_pieces.mean) == (6, 1.0)
    assert found.goodput is not None
    assert (found.goodput.requests_per_second, found.goodput.share) == (0.3, 0.75)
    assert found.drafts is None


def test_a_block_without_tokens_leaves_the_range() -> None:
    found = figures([Block((SAMPLE,), 5.0, 5.0), Block((), 5.0, 5.0)], Targets(), 0.95, Inside())
    interval = found.tokens_per_second
    assert (interval.value, interval.low, interval.high) == (0.5, 0.0, 1.0)


@pytest.mark.parametrize(
    ("targets", "sample", "kept"),
    [
        ({"time_to_first_token": 0.9}, {}, False),
        ({"inter_token": 0.5}, {}, True),
        ({"inter_token": 0.4}, {}, False),
        ({"inter_token": 0.4}, {"output_tokens": 1}, True),
        ({"end_to_end": 2.9}, {}, False),
        ({"end_to_end": 9.0}, {"error": "failed"}, False),
        ({"time_to_first_token": 9.0}, {"pieces": ()}, False),
    ],
)
def test_goodput_is_what_keeps_every_target(targets: Any, sample: Any, kept: bool) -> None:
    assert keeps(replace(SAMPLE, **sample), Targets(**targets)) is kept


def test_acceptance_is_the_sum_of_what_answers_say() -> None:
    """Three drafts of two, of which 0, 2 and 1 were accepted, and one of four, of which 4 were."""
    short, long = DraftCounts(3, 6, 3, (1, 1, 1)), DraftCounts(1, 4, 4, (0, 0, 0, 0, 1))
    samples = (replace(SAMPLE, counts=short, category="a"), replace(SAMPLE, counts=long, category="b"))
    drafts = figures([Block(samples, 5.0, 5.0)], Targets(), 0.95, Inside()).drafts
    assert drafts is not None
    assert drafts.acceptance == DraftAcceptance(4, 10, 7, (3, 2, 1, 1))
    assert drafts.by_category == {
        "a": DraftAcceptance(3, 6, 3, (2, 1)),
        "b": DraftAcceptance(1, 4, 4, (1, 1, 1, 1)),
    }


TRTSPEC = """
trtspec:spec_decode_num_drafts{{model="m",origin="engine"}} {drafts}
trtspec:spec_decode_num_drafts{{model="m",origin="lookup"}} 1
trtspec:spec_decode_num_draft_tokens{{model="m",origin="engine"}} {drafted}
trtspec:spec_decode_num_accepted_tokens{{model="m",origin="engine"}} {accepted}
trtspec:spec_decode_num_accepted_tokens_per_pos{{model="m",origin="engine",position="0"}} {accepted}
trtspec:spec_decode_num_accepted_tokens_per_pos{{model="m",origin="engine",position="1"}} 0
trtspec:round_draft_seconds{{model="m"}} {draft_s}
trtspec:round_verification_seconds{{model="m"}} {verify_s}
trtspec:round_overhead_seconds{{model="m"}} {overhead_s}
trtspec:prefix_cache_queries{{model="m",engine="target"}} {queries}
trtspec:prefix_cache_hits{{model="m",engine="target"}} {hits}
trtspec:prefix_cache_queries{{model="m",engine="draft"}} 1000
trtspec:prefix_cache_hits{{model="m",engine="draft"}} {queries}
trtspec:num_requests_running{{model="m"}} {running}
"""
VLLM = """
vllm:spec_decode_num_drafts_total{{model_name="m"}} {drafts}
vllm:spec_decode_num_draft_tokens_total{{model_name="m"}} {drafted}
vllm:spec_decode_num_accepted_tokens_total{{model_name="m"}} {accepted}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{model_name="m",position="0"}} {accepted}
vllm:prefix_cache_queries_total{{model_name="m"}} {queries}
vllm:prefix_cache_hits_total{{model_name="m"}} {hits}
vllm:num_requests_running{{model_name="m"}} {running}
"""
VALUES = {"draft_s": 0.0, "verify_s": 0.0, "overhead_s": 0.0, "running": 0}


@pytest.mark.parametrize("text", [TRTSPEC, VLLM])
def test_what_a_server_says_is_what_grew(text: str) -> None:
    counts = {"drafts": 10, "drafted": 40, "accepted": 20, "queries": 100, "hits": 50}
    before = parse(text.format(**VALUES, **counts), 0.0)
    after = text.format(
        **{name: 3 * value for name, value in counts.items()},
        draft_s=0.2, verify_s=0.4, overhead_s=0.1, running=1,
    )  # fmt: skip
    found = Meanwhile(before, parse(after, 1.0))
    assert found.drafts is not None
    assert found.drafts.source == "metrics"
    assert found.drafts.acceptance == DraftAcceptance(20, 80, 40, (40,))
    assert found.kv_reuse.share == 0.5
    ours = text is TRTSPEC
    assert found.round_times == (MeanRoundTimes(0.01, 0.02, 0.005) if ours else None)
    assert is_idle(before)
    assert not is_idle(parse(after, 1.0))


def test_what_the_drafts_engine_found_in_its_cache_the_target_did_not() -> None:
    counts = {"drafts": 0, "drafted": 0, "accepted": 0, "hits": 0}
    looks = [parse(TRTSPEC.format(**VALUES, **counts, queries=queries), 0.0) for queries in (0, 100)]
    assert Meanwhile(*looks).kv_reuse.share == 0


@pytest.mark.parametrize(("before", "after", "share"), [(1, 1, 1.0), (0, 1, 0.0), (1, 0.05, 0.05)])
def test_a_roll_out_that_has_not_come_to_all_is_told(before: float, after: float, share: float) -> None:
    """Also where it has moved meanwhile; requests that name their K take no part in it."""
    looks = [
        parse(f'trtspec:speculation_share{{model="m"}} {value}', float(at))
        for at, value in enumerate((before, after))
    ]
    load, told = OfferedLoad("streams", 4), "roll-out gives drafts to"
    measured = [LoadSamples(load, [], [], Meanwhile(*looks))]
    plan = BenchPlan(Workload("w", "w.jsonl", ()), (load,), paired=True)
    assert any(f"{told} {share:.0%}" in note for note in notes(plan, measured)) == (share < 1)
    assert not any(told in note for note in notes(replace(plan, num_draft_tokens=4), measured))


def test_a_server_that_says_nothing_has_said_nothing() -> None:
    found = Meanwhile(parse("", 0.0), parse("", 1.0))
    assert (found.drafts, found.kv_reuse.share, found.round_times) == (None, None, None)
    assert found.speculation_share == 1
