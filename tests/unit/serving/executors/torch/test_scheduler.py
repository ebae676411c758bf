from __future__ import annotations

from trtspec.serving.executor import Request
from trtspec.serving.executors.torch.scheduler import CHUNK, schedule
from trtspec.serving.executors.torch.sequence import Sequence
from trtspec.serving.executors.validation import Valid
from trtspec.serving.text import Text


def sequence(prompt: int, draft: int = 0, computed: int = 0, generated: int = 0) -> Sequence:
    made = Sequence(
        1, Request([1], 1), Valid(Text([1] * prompt), prompt, [2] * draft, 50), 0, lambda response: None
    )
    made.tokens += [3] * generated
    made.computed = computed
    return made


def plan(*sequences: Sequence, budget: int = 100) -> dict[int, tuple[int, int]]:
    """Rows and choices, by the place of the sequence among the arguments."""
    works = schedule(sequences, budget)
    assert [work.rows for work in works] == sorted(work.rows for work in works)
    assert sum(work.rows for work in works) <= budget
    return {sequences.index(work.sequence): (work.rows, work.choices) for work in works}


def test_a_prompt_a_verification_and_a_decoding_share_a_step():
    decoding = sequence(10, computed=12, generated=3)
    assert plan(sequence(20), sequence(30, draft=4, computed=28), decoding) == {
        0: (20, 1),
        1: (2 + 4, 5),
        2: (1, 1),
    }


def test_decoding_goes_before_prompts():
    assert plan(sequence(90), sequence(5, computed=5, generated=1), budget=50) == {0: (49, 0), 1: (1, 1)}


def test_prompts_are_served_in_order():
    assert plan(sequence(70), sequence(70), sequence(5)) == {0: (70, 1), 1: (30, 0)}


def test_a_prompt_goes_on_where_it_stopped():
    assert plan(sequence(90, computed=80), budget=50) == {0: (10, 1)}


def test_no_chunk_is_longer_than_chunk():
    assert plan(sequence(3 * CHUNK), budget=10 * CHUNK) == {0: (CHUNK, 0)}


def test_the_rows_of_a_draft_stay_together():
    assert plan(sequence(48, draft=6), budget=50) == {0: (54 - 7, 0)}
    assert plan(sequence(48, draft=6, computed=47), budget=50) == {0: (7, 7)}


def test_a_verification_for_which_no_room_is_left_waits():
    assert plan(sequence(46), sequence(10, draft=6, computed=9), budget=50) == {0: (46, 1)}
