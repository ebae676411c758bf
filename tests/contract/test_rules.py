"""The rules that `trtspec selftest` tries on NVIDIA's engines hold of every executor here.

A misbehaving one is in `tests/unit/measure/selftest`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pytest

from tests.contract.conftest import Continuation, Subject, Torch
from tests.fakes.trimming import Keep, sometimes
from trtspec.measure.selftest.rules import (
    RULES,
    block_reuse,
    guides,
    sampled_drafts_cut,
    trimmed_drafts,
)
from trtspec.measure.selftest.trial import Outcome, Question, Rule, Ruling, Trial

PROMPTS = ([5, 17, 33, 60], [8, 40, 2, 71, 30], [1], list(range(40)))
K = 6
CHECKS = {check.name: check for check in RULES}
NOT_TRIED = {
    sampled_drafts_cut: {"torch", "scripted", "tensorrt_llm", "bls"},
    trimmed_drafts: {"torch", "scripted", "tensorrt_llm", "bls"},
    block_reuse: {"scripted", "bls"},
    guides: {"torch", "scripted", "tensorrt_llm", "bls"},
}
"""The executors that have nothing to try."""
NOT_OF_SCRIPTED = (
    "sampled drafts",
    "sampled drafts that are cut",
    "greedy beside sampled",
    "bans and bias",
    "tokens verified",
)


@pytest.fixture
def tried(subject: Subject, continuation: Continuation) -> Callable[[Rule], Outcome]:
    async def likely(text: Sequence[int], count: int) -> Mapping[int, float]:
        assert isinstance(subject, Torch)
        found = subject.logits(text)[-1].double().softmax(-1).topk(count)
        total = float(found.values.sum())
        return {int(token): float(p) / total for token, p in zip(found.indices, found.values, strict=True)}

    def try_(check: Rule) -> Outcome:
        questions = [Question(tuple(prompt), tuple(continuation(prompt, 24))) for prompt in PROMPTS]

        async def main() -> Outcome:
            return await check.outcome(Trial(subject.load(), questions, likely, K))

        return asyncio.run(main())

    return try_


@pytest.mark.parametrize("name", CHECKS)
def test_the_rule_holds(
    request: pytest.FixtureRequest, name: str, subject: Subject, tried: Callable[[Rule], Outcome]
) -> None:
    kind, check = request.node.callspec.params["subject"], CHECKS[name]
    if kind == "scripted" and name in NOT_OF_SCRIPTED:
        pytest.skip("it has no logits to draw from, and cuts no drafts")
    found = tried(check)
    expected = Ruling.NOT_TRIED if kind in NOT_TRIED.get(check, set()) else Ruling.OK
    assert (found.state, found.found) == (expected, found.found)


def test_trimmed_drafts_change_no_text(
    trimmed: Callable[[Keep], Subject], tried: Callable[[Rule], Outcome]
) -> None:
    trimmed(sometimes(3, 0.9))
    found = tried(CHECKS["trimmed drafts"])
    assert found.state is Ruling.OK, found.found
    assert "drafts were cut" in found.found
