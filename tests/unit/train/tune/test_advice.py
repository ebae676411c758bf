"""Where too little is accepted, what helps, and why others lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.train.tune.made import Drafting, answers, costs
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.candidate import Candidate, CandidateDraft
from trtspec.train.tune.race import CandidateResult, Replays, run
from trtspec.train.tune.result import TuneResult, as_json, result_of, why

OWN = Candidate("draft_model", CandidateDraft(Path("draft"), is_own=True))
OTHER = Candidate("draft_model", CandidateDraft("some/other"))
NGRAM = Candidate("ngram", None)
ASKED = [*answers(30, category="code"), *answers(30, category="maths")]


class ByCategory:
    """A draft that is right so often in code, and so often elsewhere."""

    def __init__(self, code: float, elsewhere: float) -> None:
        self._drafts = {"code": Drafting(code), "maths": Drafting(elsewhere)}

    def __call__(self, asked: Sequence[RecordedAnswer]) -> Replays:
        found: Replays = {}
        for answer in asked:
            for length, came in self._drafts[answer.category]([answer]).items():
                found.setdefault(length, []).extend(came)
        return found


def stood(
    candidate: Candidate, code: float, elsewhere: float, draft: float = 0.1, lead: float = 1.0
) -> CandidateResult:
    return CandidateResult(candidate, run(ASKED, costs(draft), lead, ByCategory(code, elsewhere)))


def found(*standings: CandidateResult) -> TuneResult:
    return result_of(standings, len(ASKED), 1, is_measured=True)


def test_a_good_draft_needs_no_advice() -> None:
    assert found(stood(OWN, 0.8, 0.7)).advice == ()


@pytest.mark.parametrize(("right", "bound"), [(0.55, 0.6), (0.4, 0.5)])
def test_a_category_below_a_bound_is_called_out(right: float, bound: float) -> None:
    (advice,) = found(stood(OWN, 0.9, right)).advice
    assert (advice.category, advice.bound, advice.answers) == ("maths", bound, 30)
    assert advice.per_token == pytest.approx(right, abs=0.04)
    assert advice.of_drafted < advice.per_token - 0.1  # The bound is not of this one.
    assert f"under {bound:.0%}" in str(advice)
    assert "trtspec distill" in str(advice)


def test_the_advice_names_the_candidate_that_is_better_in_that_category() -> None:
    (advice,) = found(stood(OWN, 0.98, 0.45), stood(OTHER, 0.3, 0.8)).advice
    assert "some/other with K = " in advice.repairs[0]


def test_drafts_that_cost_more_than_they_bring_are_to_be_left_out() -> None:
    advice = found(stood(OWN, 0.97, 0.1, draft=0.15)).advice[-1]
    assert advice.category == "maths"
    assert advice.speedup < 1
    assert "num_draft_tokens 0" in advice.repairs[0]


def test_acceptance_that_is_low_in_all_comes_first() -> None:
    whole, *others = found(stood(OWN, 0.5, 0.55, draft=0.02)).advice
    assert str(whole).startswith("in all: ")
    assert {advice.category for advice in others} == {"code", "maths"}


def test_each_is_told_why_it_lost() -> None:
    best = stood(OWN, 0.8, 0.8)
    assert best.run
    lead = best.run.best.speedup.low
    twin = stood(Candidate("hybrid", OWN.draft), 0.8, 0.8)
    slower = stood(OTHER, 0.7, 0.7)
    hopeless = stood(NGRAM, 0.1, 0.1, lead=lead)
    refused = CandidateResult(
        Candidate("draft_model", CandidateDraft("a/b")), refused="a/b: another tokenizer"
    )
    said = found(refused, hopeless, slower, best, twin)
    reasons = [why(standing, said) for standing in said.standings]
    assert said.best is best
    assert reasons[0].startswith("the best")
    assert reasons[1] == "not measurably slower than the best"
    assert reasons[2].startswith("the best is ")
    assert reasons[3].startswith("stopped after 8 of 60 answers: at most ")
    assert reasons[4] == "a/b: another tokenizer"
    assert json.loads(json.dumps(as_json(said), allow_nan=False))["best"]["method"] == "draft_model"


def test_the_target_alone_may_be_best() -> None:
    said = found(stood(OWN, 0.1, 0.1, draft=1.0))
    assert said.best is None
    assert said.advice == ()
    assert "the target alone has 1.00x" in why(said.standings[0], said)
