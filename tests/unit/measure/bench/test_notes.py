"""What is said beside the numbers."""

from __future__ import annotations

import pytest

from tests.unit.measure.bench.results import figures
from trtspec.client.scrape import parse
from trtspec.measure.bench.inside import Meanwhile
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import Arms, Interval, LoadResult, OfferedLoad
from trtspec.measure.bench.sample import Block, LoadSamples, RequestSample
from trtspec.measure.bench.summary import notes, notes_of_order
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
        (
            "the prompts are random words",
            (sample(),),
            ONE,
            Workload("synthetic", "s", MANY.prompts),
        ),
    ],
)
def test_what_a_reader_must_know(
    said: str, samples: tuple[RequestSample, ...], load: OfferedLoad, workload: Workload
) -> None:
    assert said in told(*samples, load=load, prompts=workload)


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
    level = LoadResult(load, Arms(figures(100), figures(50)), Interval(2.0, 1.9, 2.1), pairs)
    found = list(notes_of_order([level], 0.95))
    said = f"{load}: the second block of a pair was 30% faster"
    assert [said in note for note in found] == [True] * is_told
