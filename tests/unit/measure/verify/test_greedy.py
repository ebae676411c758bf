"""What is made of two answers: near ties, faults, ends and texts, on a table of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.said import Said
from tests.unit.measure.verify.conftest import TINY
from trtspec.measure.verify.greedy import GreedyCheck
from trtspec.measure.verify.prompts import VerifyPrompt, Vocabulary
from trtspec.measure.verify.result import VerifyResult
from trtspec.measure.verify.sides import END, Row, Sides, VerificationSettings

PROMPT = VerifyPrompt("one", "a prompt", (11, 12, 13))
PLAIN = (4, 5, 6, 7)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.load(TINY / "target")


def check(
    vocabulary: Vocabulary,
    drafted: Sequence[int],
    rows: Mapping[int, Row],
    plain: Sequence[int] = PLAIN,
    **kw: Any,
) -> VerifyResult:
    subject = Said(PROMPT.token_ids, plain, drafted, rows, **kw)
    asked = VerificationSettings((3,), max_tokens=4, concurrency=2, dtype="float32")
    greedy = GreedyCheck(Sides(subject, subject), vocabulary, [PROMPT], asked, lambda number: None)

    async def main() -> VerifyResult:
        return await greedy.judge(await greedy.plain(), await greedy.drafted())

    return asyncio.run(main())


def test_the_same_answer_has_no_difference(vocabulary: Vocabulary) -> None:
    found = check(vocabulary, PLAIN, {})
    assert not found.comparisons[0].differences
    assert (found.comparisons[0].drafted, found.comparisons[0].tokens) == (5, 4)


@pytest.mark.parametrize("top_log_probs", [20, 0])
def test_a_difference_is_judged_at_its_place(vocabulary: Vocabulary, top_log_probs: int) -> None:
    tie = {2: {6: -0.7, 9: -0.7001, 8: -3.0}}
    for drafted, kind, margin in (((4, 5, 9, 1), "near tie", 0.0001), ((4, 5, 8, 1), "fault", 2.3)):
        found = check(vocabulary, drafted, tie, top_log_probs=top_log_probs)
        (difference,) = found.comparisons[0].differences
        assert (difference.kind, difference.position, difference.prompt) == (kind, 2, "one")
        assert difference.expected == vocabulary.name(6)
        assert difference.found == vocabulary.name(drafted[2])
        assert difference.margin == pytest.approx(margin, rel=0.04)


def test_an_end_is_judged_like_any_token(vocabulary: Vocabulary) -> None:
    (end,) = vocabulary.end_ids
    near, far = {1: {end: -0.7, 5: -0.7001}}, {1: {end: -9.0, 5: -0.1}}
    for rows, kind in ((near, "near tie"), (far, "fault")):
        (difference,) = check(vocabulary, (4, END), rows).comparisons[0].differences
        assert (difference.kind, difference.found) == (kind, "the end")


def test_an_answer_that_stops_without_an_end_is_a_fault(vocabulary: Vocabulary) -> None:
    (difference,) = check(vocabulary, PLAIN[:3], {3: {7: -0.1, 5: -3.0}}).comparisons[0].differences
    assert (difference.kind, difference.found) == ("fault", "nothing")
    assert "without an end token" in difference.meaning


def test_tokens_of_the_vocabulary_are_told_as_text(vocabulary: Vocabulary) -> None:
    assert vocabulary.name(vocabulary.encode("def")[0]) == "'def'"
    assert vocabulary.name(0) == "<|endoftext|>"
    assert vocabulary.beginning == ""


def test_a_text_that_has_its_beginning_gets_no_second_one(float32_build: Path) -> None:
    vocabulary = Vocabulary.load(float32_build / "tokenizer")
    assert vocabulary.beginning == "<|endoftext|>"
    assert vocabulary.encode("<|endoftext|>def") == vocabulary.encode("def")
    assert vocabulary.encode("def")[0] == 0


def test_tokens_that_are_equally_likely_are_told_so(vocabulary: Vocabulary) -> None:
    (difference,) = check(vocabulary, (4, 5, 9, 1), {2: {6: -0.7, 9: -0.7}}).comparisons[0].differences
    assert difference.kind == "near tie"
    assert difference.meaning.startswith("both are equally likely to the target")
