"""Faults that were put into a pair: each must be found, and an honest pair must pass."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.fakes import seeded_faults as faults
from tests.unit.measure.verify.conftest import Verified
from trtspec.measure.verify.sides import VerificationSettings

NAMES = ("code-1", "prose-1", "list-1", "begun-1")
GREEDY = VerificationSettings(lengths=(1, 3), max_tokens=24, dtype="float32", draws=0)
EACH_LENGTH = replace(GREEDY, lengths=(1, 2, 3, 4))
OPEN = ("prose-1", "letters-2")
SAMPLED = VerificationSettings(lengths=(1, 3), max_tokens=4, dtype="float32", draws=120)


def test_an_honest_pair_passes(float32_build: Path, verified: Verified) -> None:
    result = verified(float32_build, GREEDY, NAMES)
    assert result.is_lossless, result.reasons
    assert result.tolerance.noise is not None
    assert 0 <= result.tolerance.noise < 1e-4
    assert all(way.drafted and not way.differences for way in result.comparisons)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(faults.accepts_one_too_many, marks=pytest.mark.sweep),
        faults.drops_the_bonus_token,
        pytest.param(faults.keeps_a_stale_block, marks=pytest.mark.sweep),
        pytest.param(faults.begins_verifications_twice, marks=pytest.mark.sweep),
    ],
)
def test_a_fault_of_every_round_is_found(
    fault: faults.Fault, float32_build: Path, verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = verified(float32_build, GREEDY, NAMES, partial(fault, monkeypatch))
    assert [reason.split(" in ")[0] for reason in result.reasons] == ["speculation changed the answer"]
    assert all(way.faults for way in result.comparisons), "with every K"
    assert not result.noise.differences


def test_a_fault_of_one_draft_length_is_found_there_alone(
    float32_build: Path, verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = partial(faults.moves_positions_of_three_drafts, monkeypatch)
    result = verified(float32_build, EACH_LENGTH, NAMES, fault)
    found = {way.num_draft_tokens for way in result.comparisons if way.faults}
    assert 3 in found
    assert found <= {3, 4}, "a draft of four is cut to three by the end of the answer"
    assert not result.is_lossless


def test_a_second_beginning_is_found(
    float32_build: Path, verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = verified(float32_build, GREEDY, NAMES, partial(faults.begins_twice, monkeypatch))
    assert [(found.prompt, found.what) for found in result.prompts] == [("begun-1", "prompt")]
    assert "second begin token" in result.prompts[0].meaning
    assert not result.is_lossless


@pytest.mark.parametrize(
    "fault",
    [
        faults.draws_the_same_numbers_each_round,
        pytest.param(faults.forgets_the_seed, marks=pytest.mark.sweep),
        pytest.param(faults.counts_rounds_for_tokens, marks=pytest.mark.sweep),
    ],
)
def test_a_wrong_seed_is_found(
    fault: faults.Fault, float32_build: Path, verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = verified(float32_build, SAMPLED, OPEN, partial(fault, monkeypatch))
    assert result.reasons == ["sampled text has another distribution with drafts than without"]


@pytest.mark.sweep
def test_honest_sampling_passes(float32_build: Path, verified: Verified) -> None:
    result = verified(float32_build, SAMPLED, OPEN)
    assert result.is_lossless, result.reasons
    assert result.sampling is not None
    text = result.sampling.views[0]
    assert text.found_everywhere < text.found_in_one < 0.5


def test_drafts_that_never_come_prove_nothing(
    float32_build: Path, verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = verified(float32_build, GREEDY, NAMES, partial(faults.ignores_drafts, monkeypatch))
    assert not result.is_lossless
    assert "nothing was drafted" in result.reasons[0]


def test_near_ties_of_bfloat16_pass(
    bfloat16_build: Path, verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of some processors sum in another order with more rows; here all do, and it is measured."""
    settings = VerificationSettings(lengths=(2, 4), max_tokens=24, dtype="bfloat16", draws=0)
    prompts = ("prose-3", "list-2", "list-4", "code-3")
    result = verified(bfloat16_build, settings, prompts, partial(faults.rounds_otherwise, monkeypatch))
    assert result.is_lossless, result.reasons
    assert result.tolerance.noise
    ties = [tie for way in result.comparisons for tie in way.near_ties]
    assert ties
    assert all(tie.margin is not None and 0 <= tie.margin <= result.tolerance.value for tie in ties)
    assert not result.noise.faults, "plain decoding parts from itself at near ties alone, if at all"
