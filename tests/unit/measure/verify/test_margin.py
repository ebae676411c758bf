"""The margin that decides between a near tie and a fault, by log-probabilities and by bias."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.fakes.said import Said
from tests.unit.measure.verify.conftest import MODEL, TINY
from trtspec.measure.verify.opening import InProcess, load_build
from trtspec.measure.verify.sides import END, VerifyAnswer, VerifyRequest
from trtspec.measure.verify.tolerance import Margins, margins, tolerance

BOUND = tolerance("float32", None)
ROW = {3: -0.5, 4: -0.75, 9: -2.5, 1: -6.0}


def told(row: dict[int, float], tokens: list[int], top_log_probs: int) -> Margins:
    target = Said((5,), (), (), {1: row}, top_log_probs)
    return asyncio.run(margins(target, VerifyRequest((5, 8), 1), tokens, (1, 9), BOUND))


@pytest.mark.parametrize("top_log_probs", [20, 0])
def test_the_margin_is_how_far_a_token_is_behind_the_likeliest(top_log_probs: int) -> None:
    found = told(ROW, [3, 4], top_log_probs)
    assert found.likeliest == 3
    assert found.behind[3] == 0
    assert found.behind[4] == pytest.approx(0.25, rel=0.01)
    assert not found.within(BOUND)


@pytest.mark.parametrize("top_log_probs", [20, 0])
def test_the_end_is_the_likeliest_of_the_end_tokens(top_log_probs: int) -> None:
    assert told(ROW, [3, END], top_log_probs).behind[END] == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("top_log_probs", [20, 0])
def test_a_difference_that_rounding_explains_is_within_the_margin(top_log_probs: int) -> None:
    assert told({3: -0.5, 4: -0.5 - BOUND.value / 2}, [3, 4], top_log_probs).within(BOUND)
    assert not told({3: -0.5, 4: -0.5 - BOUND.value * 2}, [3, 4], top_log_probs).within(BOUND)


def test_without_a_bound_there_is_a_margin_still() -> None:
    """`--near-tie 0`, of an engine that is asked with a bias: a fault where anything parts."""

    class Patient(Said):
        left = 100

        async def ask(self, question: VerifyRequest) -> VerifyAnswer:
            self.left -= 1
            assert self.left, "it would ask for ever"
            return await super().ask(question)

    target, bound = Patient((5,), (), (), {1: ROW}, 0), tolerance("bfloat16", None, 0.0)
    found = asyncio.run(margins(target, VerifyRequest((5, 8), 1), [3, 4], (1, 9), bound))
    assert found.behind[4] == pytest.approx(0.25, rel=0.01)
    assert not found.within(bound)


def test_a_token_that_is_not_told_is_no_tie() -> None:
    found = told({3: -0.5, 4: -0.5 - BOUND.value * 2}, [3, 7], 20)
    assert found.is_at_least
    assert not found.within(BOUND)


class Narrow(Said):
    """A target that tells the two likeliest tokens, whoever asks for more."""

    async def ask(self, question: VerifyRequest) -> VerifyAnswer:
        answer = await super().ask(question)
        return replace(
            answer,
            rows=tuple(dict(sorted(row.items(), key=lambda each: -each[1])[:2]) for row in answer.rows),
        )


@pytest.mark.parametrize(("steps", "is_tie"), [(0.5, True), (3.0, False)])
def test_a_token_that_the_row_has_no_place_for_is_asked_about(steps: float, is_tie: bool) -> None:
    """The three likeliest lie within the bound, and two of them are told."""
    step = BOUND.value / 4
    target = Narrow((5,), (), (), {1: {3: -0.5, 4: -0.5 - step, 7: -0.5 - step * 2 * steps}}, 5)
    found = asyncio.run(margins(target, VerifyRequest((5, 8), 1), [3, 7], (1, 9), BOUND))
    assert not found.is_at_least
    assert found.behind[7] == pytest.approx(2 * steps * step, rel=0.02)
    assert found.within(BOUND) == is_tie


def test_both_ways_agree_with_transformers(float32_build: Path) -> None:
    """The engine's log-probabilities, its answers under a bias, and another implementation's logits."""

    async def main() -> list[Margins]:
        subject = InProcess("the pair", load_build(float32_build, MODEL))
        try:
            by_rows = await margins(subject, question, tokens, (0,), BOUND)
            subject.top_log_probs = 0
            return [by_rows, await margins(subject, question, tokens, (0,), BOUND)]
        finally:
            await subject.close()

    ids = (0, 97, 512, 300, 41, 7)
    model = AutoModelForCausalLM.from_pretrained(TINY / "target", dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, -1]
    order = logits.argsort(descending=True).tolist()
    question, tokens = VerifyRequest(ids, 1), [order[0], order[3]]
    expected = float(logits[order[0]] - logits[order[3]])
    for found in asyncio.run(main()):
        assert found.likeliest == order[0]
        assert found.behind[order[3]] == pytest.approx(expected, rel=0.01)
