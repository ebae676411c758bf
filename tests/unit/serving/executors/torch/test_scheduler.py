from __future__ import annotations

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from trtspec.serving.executor import Request
from trtspec.serving.executors.torch.sequence import CHUNK, EngineSequence, StepScheduler
from trtspec.serving.executors.validation import Valid
from trtspec.serving.text import Text


def sequence(prompt: int, draft: int = 0, computed: int = 0, generated: int = 0) -> EngineSequence:
    made = EngineSequence(1, Request([1], 1), Valid(Text([1] * prompt), prompt, [2] * draft, 50), 0)
    made.new += [3] * generated
    made.computed = computed
    return made


def plan(*sequences: EngineSequence, max_rows: int = 100, short: int = 8) -> dict[int, tuple[int, int]]:
    """Rows and choices, by the place of the sequence among the arguments."""
    works = StepScheduler(max_rows, short).schedule(sequences)
    assert [work.rows for work in works] == sorted(work.rows for work in works)
    return {sequences.index(work.sequence): (work.rows, work.choices) for work in works}


def test_a_prompt_a_verification_and_a_decoding_share_a_step() -> None:
    decoding = sequence(10, computed=12, generated=3)
    assert plan(sequence(20), sequence(30, draft=4, computed=28), decoding) == {
        0: (20, 1),
        1: (2 + 4, 5),
        2: (1, 1),
    }


def test_the_scheduler_serves_running_texts_before_prompts() -> None:
    decoding, verification = sequence(5, computed=5, generated=1), sequence(30, draft=6, computed=29)
    assert plan(sequence(90), decoding, verification, max_rows=50) == {0: (50 - 8, 0), 1: (1, 1), 2: (7, 7)}


def test_prompts_are_served_in_order() -> None:
    assert plan(sequence(70), sequence(70), sequence(20)) == {0: (70, 1), 1: (30, 0)}


def test_a_prompt_goes_on_where_it_stopped() -> None:
    assert plan(sequence(90, computed=75), max_rows=50) == {0: (15, 1)}


def test_no_chunk_is_longer_than_chunk() -> None:
    assert plan(sequence(3 * CHUNK), max_rows=10 * CHUNK) == {0: (CHUNK, 0)}


def test_the_rows_of_a_draft_stay_together() -> None:
    assert plan(sequence(48, draft=6), max_rows=50) == {0: (54 - 7, 0)}
    assert plan(sequence(48, draft=6, computed=47), max_rows=50) == {0: (7, 7)}


def test_prompts_come_to_an_end_beside_a_full_batch() -> None:
    going_on = [sequence(30, draft=6, computed=29) for _ in range(20)]
    assert plan(*going_on, sequence(80), sequence(80), max_rows=100)[20] == (80, 1)


@given(
    prompts=st.lists(st.tuples(st.integers(1, 900), st.integers(0, 8)), max_size=12),
    going_on=st.integers(0, 16),
)
@settings(max_examples=200, deadline=None)
@example(prompts=[(1, 0), (1, 0), (1, 0), (1, 7), (2, 8), (156, 8)], going_on=16)
def test_every_prompt_is_done_in_bounded_steps_in_order(
    prompts: list[tuple[int, int]], going_on: int
) -> None:
    scheduler = StepScheduler(max_rows=256, short=10)
    waiting = [sequence(length, draft) for length, draft in prompts]
    running = [sequence(30, draft=8, computed=29) for _ in range(going_on)]
    finished: list[EngineSequence] = []
    for _ in range(1 + sum(one.missing for one in waiting) // 32 + len(waiting)):
        decoding = 9 * going_on + sum(one.missing for one in waiting if one.missing <= 10)
        works = scheduler.schedule([*waiting, *running])
        rows = Counter(id(work.sequence) for work in works)
        assert max(rows.values(), default=1) == 1
        assert sum(work.rows for work in works) <= max(256, decoding + 64, 2 * decoding)
        assert {id(one) for one in running} <= rows.keys()
        for work in works:
            if work.sequence in waiting:
                work.sequence.computed += work.rows - (
                    len(work.sequence.draft_token_ids) if work.choices else 0
                )
                if work.choices:
                    waiting.remove(work.sequence)
                    finished.append(work.sequence)
    assert not waiting
