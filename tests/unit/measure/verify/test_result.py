"""What follows from what was found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trtspec.measure.commands.verify import verdict
from trtspec.measure.verify.result import (
    CaseResult,
    Difference,
    DistributionTest,
    Draws,
    GreedyComparison,
    Sampling,
    VerifyResult,
)
from trtspec.measure.verify.tolerance import tolerance

FAULT = Difference("one", "tokens", "fault", 3, "a", "b", "c", "because")
NOISE = GreedyComparison(0, 8, 4, 64, (), 1e-5, 0, 0)
DRAFTED = GreedyComparison(3, 8, 4, 64, (), 1e-5, 30, 20)
HONEST = VerifyResult("here", "here", tolerance("float32", 1e-5), NOISE, (DRAFTED,))


def test_an_honest_pair_is_lossless() -> None:
    assert HONEST.is_lossless
    assert HONEST.as_dict()["lossless"] is True


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (replace(HONEST, comparisons=(replace(DRAFTED, differences=(FAULT,)),)), "in 1 place"),
        (replace(HONEST, noise=replace(NOISE, differences=(FAULT,))), "plain decoding contradicts itself"),
        (replace(HONEST, tolerance=tolerance("float32", 0.5)), "plain decoding contradicts itself"),
        (replace(HONEST, prompts=(FAULT,)), "tokenizes 1 of the prompts differently"),
        (
            replace(HONEST, comparisons=(DRAFTED, replace(DRAFTED, drafted=0, accepted=0))),
            "nothing was drafted",
        ),
        (replace(HONEST, comparisons=(replace(DRAFTED, accepted=0),)), "no draft token was accepted"),
        (
            replace(HONEST, cases=(CaseResult("stops", "", "fault", "a"), CaseResult("json", "", "skipped"))),
            "1 of 2 cases failed: stops",
        ),
    ],
)
def test_each_flaw_is_a_reason(result: VerifyResult, reason: str) -> None:
    (found,) = result.reasons
    assert reason in found


def test_two_servers_need_not_draft() -> None:
    silent = replace(DRAFTED, drafted=0, accepted=0)
    assert replace(HONEST, comparisons=(silent,), subject="servers").is_lossless
    wrong = replace(HONEST, comparisons=(replace(DRAFTED, differences=(FAULT,)),), subject="servers")
    assert wrong.reasons == ["the new server answers otherwise in 1 place"]


def test_near_ties_are_none() -> None:
    tie = replace(FAULT, kind="near tie")
    assert replace(HONEST, comparisons=(replace(DRAFTED, differences=(tie,)),)).is_lossless


def test_a_deployment_may_draft_nothing_by_itself_if_it_drafts_when_asked() -> None:
    silent = replace(DRAFTED, num_draft_tokens=None, drafted=0, accepted=0)
    assert replace(HONEST, comparisons=(silent, DRAFTED)).is_lossless
    assert not replace(HONEST, comparisons=(silent,)).is_lossless


def test_a_server_that_counts_nothing_is_believed() -> None:
    """vLLM's says nothing of drafts."""
    assert replace(HONEST, comparisons=(replace(DRAFTED, drafted=None, accepted=None),)).is_lossless


def test_samples_of_one_outcome_are_no_proof() -> None:
    """As with `--draws 5`: nothing is common enough to be counted."""
    draws = Draws("one", 1, 0.0, 1.0, 0.0, "anything else: 5 times alone, 5 with drafts")
    views = tuple(DistributionTest(of, (draws,), 1.0, 1.0, 1.0) for of in ("text", "repeats"))
    sampling = Sampling(1.0, 5, 6, 0.00025, 0.95, views)
    sampled = replace(HONEST, sampling=sampling)
    assert "the same distribution" not in verdict(sampled)
    assert "too few of the sampled continuations differ" in verdict(sampled)
    told = replace(views[0], prompts=(replace(draws, outcomes=4),))
    known = replace(sampled, sampling=replace(sampling, views=(told, views[1])))
    assert verdict(known).endswith("and sampled text has the same distribution")
