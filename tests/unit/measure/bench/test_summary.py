"""The figures of blocks whose requests are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.measure.bench.results import figures as made_figures
from tests.unit.measure.bench.results import result
from trtspec.client.endpoint import DraftCounts
from trtspec.client.scrape import parse
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import (
    Arms,
    BenchResult,
    DraftAcceptance,
    Inside,
    Interval,
    LoadResult,
    MeanRoundTimes,
    OfferedLoad,
    Targets,
)
from trtspec.measure.bench.sample import Block, LoadSamples, RequestSample
from trtspec.measure.bench.server_metrics import Meanwhile, is_idle
from trtspec.measure.bench.summary import (
    figures,
    keeps,
    notes,
    notes_of_order,
    notes_of_reuse,
    summary,
    valid,
    verdict,
)
from trtspec.measure.workloads.workload import Prompt, Workload

ONE = OfferedLoad("streams", 1)
MANY = Workload("questions", "q.jsonl", tuple(Prompt(str(number), ("x",)) for number in range(1000)))


def sample(**values: object) -> RequestSample:
    shared = {"prompt": "p", "category": "c", "turn": 0, "intended": 0.0, "sent": 0.0, "ended": 1.0}
    return RequestSample(**{**shared, **values})  # type: ignore[arg-type]


def told(*samples: RequestSample, load: OfferedLoad = ONE, said: str = "", prompts: Workload = MANY) -> str:
    plan = BenchPlan(prompts, (load,), paired=False)
    scrape = parse(said, 0.0)
    level = LoadSamples(
        load, [{"speculative": Block(samples, 1.0, 1.0)}], meanwhile=Meanwhile(scrape, scrape)
    )
    return "; ".join(notes(plan, [level]))


def test_a_quiet_run_has_nothing_beside_it() -> None:
    assert told(sample()) == ""


@pytest.mark.parametrize(
    ("said", "samples", "load", "workload"),
    [
        (
            "1 stream: 1 of 2 requests with drafts failed: refused 1 (503: full)",
            (sample(error="refused", problem="503: full"), sample()),
            ONE,
            MANY,
        ),
        ("pieces of text were counted instead", (sample(tokens_told=False),), ONE, MANY),
        ("1 of 1 requests were sent more than 10 ms late", (sample(sent=0.5),), OfferedLoad("rate", 2), MANY),
        (
            "1 prompts were sent repeatedly",
            (sample(),),
            ONE,
            Workload("w", "w", MANY.prompts[:1]),
        ),
    ],
)
def test_a_bench_warns_of_failed_late_and_repeated_requests(
    said: str, samples: tuple[RequestSample, ...], load: OfferedLoad, workload: Workload
) -> None:
    assert said in told(*samples, load=load, prompts=workload)


@pytest.mark.parametrize(
    ("name", "ignores", "why"),
    [
        ("synthetic", True, "the prompts are random words, and ignore_eos makes"),
        ("questions", True, "ignore_eos makes answers go on behind their end"),
        ("questions", False, None),
    ],
)
def test_the_verdict_names_what_makes_it_invalid(name: str, ignores: bool, why: str | None) -> None:
    plan = BenchPlan(Workload(name, "w", MANY.prompts), (ONE,), paired=True, ignore_eos=ignores)
    found = valid(verdict(result().levels), plan)
    assert bool(found.invalid) == (why is not None)
    assert ("invalid for users' traffic" in found.words) == (why is not None)
    assert (why or "1.9x") in found.words
    assert found.decision == "up_to"
    assert valid(verdict(()), plan).words == "nothing was measured"


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ('vllm:prefix_cache_queries_total{engine="0"}', 'vllm:prefix_cache_hits_total{engine="0"}'),
        ("sglang:prompt_tokens_total", 'sglang:cached_tokens_total{cache_source="device"}'),
        ("trtllm_kv_cache_missed_blocks_total", "trtllm_kv_cache_reused_blocks_total"),
        ('trtspec:prefix_cache_queries{engine="target"}', 'trtspec:prefix_cache_hits{engine="target"}'),
    ],
)
def test_the_reuse_of_prefixes_is_read_at_every_server(asked: str, found: str) -> None:
    blocks = 300 if "missed" in asked else 400  # TensorRT-LLM counts those that it had beside the others.
    before = parse(f"{asked} 100\n{found} 50\n", 0.0)
    reuse = Meanwhile(before, parse(f"{asked} {100 + blocks}\n{found} 150\n", 1.0)).kv_reuse
    assert (reuse.asked, reuse.found, reuse.share) == (400, 100, 0.25)


def test_an_engine_that_reuses_fewer_prefixes_with_drafts_is_told_of() -> None:
    def level(own: float | None, plain: float | None) -> LoadResult:
        first = result().levels[0]
        arms = zip((first.arms.speculative, first.arms.plain), (own, plain), strict=True)
        return replace(first, arms=Arms(*(replace(arm, inside=Inside(kv_reuse=n)) for arm, n in arms if arm)))

    (note,) = notes_of_reuse([level(0.31, 0.62)])
    assert "had 31% of the prompts' tokens with drafts, and 62% without" in note
    assert not list(notes_of_reuse([level(0.6, 0.62), level(None, 0.5), level(0.5, None), level(0.0, 0.0)]))


@pytest.mark.parametrize(
    ("drafts", "is_told"),
    [
        ('{origin="lookup"} 7', True),
        ('{origin="earlier_answers"} 7', True),
        ('{origin="earlier_answers"} 0', False),
    ],
)
def test_one_tenant_may_have_drafts_from_the_other_arms_answers(drafts: str, is_told: bool) -> None:
    """Unless the server says that it has had none."""
    before, after = parse("", 0.0), parse(f"trtspec:spec_decode_num_drafts{drafts}", 1.0)
    level = LoadSamples(
        ONE, [{"speculative": Block((sample(),), 1.0, 1.0)}], meanwhile=Meanwhile(before, after)
    )
    plan = BenchPlan(MANY, (ONE,), paired=False)
    assert any("which is one tenant" in note for note in notes(plan, [level], is_one_tenant=True)) == is_told
    assert list(notes(plan, [level])) == []


def test_a_roll_out_is_told() -> None:
    found = told(sample(), said='trtspec:speculation_share{model="m"} 0.25')
    assert found == (
        "1 stream: the server's roll-out gives drafts to 25% of the requests that set no K; "
        "--num-draft-tokens gives them to all"
    )


@pytest.mark.parametrize("load", [ONE, OfferedLoad("rate", 2)])
@pytest.mark.parametrize(("gain", "is_told"), [(1.0, False), (1.3, True)])
def test_a_cache_that_helps_who_comes_second_is_told(load: OfferedLoad, gain: float, is_told: bool) -> None:
    rates = [
        (100 * noise * (gain if number % 2 else 1), 50 * (1 if number % 2 else gain))
        for number, noise in enumerate((1.01, 0.99, 1.02, 1.0, 0.99, 1.01))
    ]
    pairs = tuple(rates if load.kind == "streams" else ((1 / own, 1 / plain) for own, plain in rates))
    level = LoadResult(load, Arms(made_figures(100), made_figures(50)), Interval(2.0, 1.9, 2.1), pairs)
    found = list(notes_of_order([level], 0.95))
    said = f"{load}: the second block of a pair was 30% faster"
    assert [said in note for note in found] == [True] * is_told


def levels(*speedups: tuple[float, float, float]) -> list[LoadResult]:
    """Streams and the interval's middle and half width."""
    arms = Arms(made_figures(100), made_figures(50))
    return [
        LoadResult(OfferedLoad("streams", streams), arms, Interval(value, value - half, value + half))
        for streams, value, half in speedups
    ]


@pytest.mark.parametrize(
    ("speedups", "words", "decision", "break_even"),
    [
        (
            [(1, 1.9, 0.1), (16, 1.2, 0.1), (32, 0.88, 0.05)],
            "1.9x ± 0.1 at 1 stream, break-even at 24, switch off above",
            "up_to",
            24,
        ),
        ([(1, 1.9, 0.1)], "1.9x ± 0.1 at 1 stream: leave it on", "on", None),
        (
            [(1, 1.9, 0.1), (4, 1.5, 0.1), (16, 1.25, 0.04)],
            "1.9x ± 0.1 at 1 stream, 1.25x ± 0.04 at 16 streams: leave it on, "
            "at each of the 3 loads that were measured",
            "on",
            None,
        ),
        ([(1, 0.8, 0.05), (8, 0.6, 0.05)], "0.80x ± 0.05 at 1 stream: switch it off", "off", None),
        ([(1, 1.0, 0.05)], "no difference was found: 1.00x ± 0.05 at 1 stream", "undecided", None),
        (
            [(1, 1.4, 0.1), (8, 1.02, 0.05)],
            "1.4x ± 0.1 at 1 stream, no difference found from 8 streams on (1.02x ± 0.05)",
            "up_to",
            None,
        ),
        (
            [(1, 1.4, 0.1), (8, 1.02, 0.05), (32, 0.8, 0.05)],
            "1.4x ± 0.1 at 1 stream, break-even at 9, switch off above",
            "up_to",
            9,
        ),
        (
            [(1, 1.4, 0.1), (4, 1.05, 0.1), (8, 0.98, 0.1), (16, 0.7, 0.05)],
            "1.4x ± 0.1 at 1 stream, break-even at 6.5, switch off above",
            "up_to",
            6.54,
        ),
        (
            [(1, 0.8, 0.05), (8, 1.4, 0.1)],
            "it depends: 0.80x ± 0.05 at 1 stream, 1.4x ± 0.1 at 8 streams",
            "undecided",
            None,
        ),
    ],
)
def test_words(
    speedups: list[tuple[float, float, float]], words: str, decision: str, break_even: float | None
) -> None:
    found = verdict(levels(*speedups))
    assert (found.words.replace("9.0", "9"), found.decision) == (words, decision)
    assert found.break_even == (None if break_even is None else pytest.approx(break_even, rel=0.03))


def test_loads_may_come_in_any_order() -> None:
    found = levels((1, 1.9, 0.1), (16, 1.2, 0.1), (32, 0.88, 0.05))
    assert verdict(found[::-1]) == verdict(found)


def test_without_a_plain_arm_no_speedup_is_stated() -> None:
    (level,) = levels((1, 1.9, 0.1))
    found = verdict([replace(level, arms=Arms(made_figures(100)), speedup=None)])
    assert found.decision == "unmeasured"
    assert "--baseline URL" in found.words
    assert verdict([]).words == "nothing was measured"


def test_a_level_without_answers_is_named() -> None:
    first, second = levels((1, 1.9, 0.1), (8, 1.9, 0.1))
    found = verdict([first, replace(second, speedup=None)])
    assert found.words == "1.9x ± 0.1 at 1 stream: leave it on, at 1 of the 2 loads that were measured"
    assert found.notes == ("8 streams: no speed-up is stated, since too few pairs of blocks have answers",)


def summed_up(load: OfferedLoad, refused: int) -> BenchResult:
    """Six pairs of 100 requests, 2 s each with drafts and 1.6 s without, of which so many are refused."""
    answer = RequestSample("p", "c", 0, 0.0, 0.0, 2.0, (2.0,), 10, 100)
    quick = replace(answer, ended=1.6, pieces=(1.6,))
    refusal = replace(answer, ended=0.01, pieces=(), error="refused", problem="503")
    with_drafts = Block((answer,) * 100, 3.0, 3.0)
    plain = Block((refusal,) * refused + (quick,) * (100 - refused), 3.0, 3.0)
    plan = BenchPlan(Workload("w", "w", (Prompt("p", ("x",)),)), (load,), paired=True)
    measured = LoadSamples(load, [{"speculative": with_drafts, "plain": plain} for _ in range(6)])
    return summary(plan, result(), [measured], is_partial=False)


def test_at_a_rate_who_refuses_many_is_not_called_faster() -> None:
    rate = OfferedLoad("rate", 10)
    assert summed_up(rate, 1).verdict.decision == "off"
    found = summed_up(rate, 60)
    assert (found.levels[0].speedup, found.verdict.decision) == (None, "unmeasured")
    assert (
        "10 requests/s: no speed-up is stated, since more than 1% of the requests of an arm failed; a lower "
        "--rate avoids that"
    ) in found.verdict.notes
    # Streams are compared by tokens a second, which refused requests have none of.
    assert summed_up(OfferedLoad("streams", 10), 60).verdict.decision == "on"


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
def test_figures_from_server_metrics_count_only_the_growth_during_a_block(text: str) -> None:
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


def test_cache_hits_of_the_draft_engine_do_not_count_for_the_target() -> None:
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
