from __future__ import annotations

import pytest

from trtspec.serving.adaptive.ensemble import Ensemble
from trtspec.serving.adaptive.policy import BURST


def test_the_share_of_texts_with_a_draft_is_that_of_their_steps() -> None:
    ensemble = Ensemble()
    assert ensemble.share(16) == 1
    for _ in range(1000):
        ensemble.stepped(1, True, 16)
        ensemble.stepped(3, False, 16)
    assert ensemble.share(16) == pytest.approx((1 + 15 * 0.25) / 16, abs=0.02)
    assert ensemble.share(1) == 1


def test_bursts_of_all_end_together() -> None:
    """So that K changes for all at the same token, and rounds are seldom beside bursts."""
    ensemble = Ensemble()
    leader, second, third, late = object(), object(), object(), object()
    assert not ensemble.is_led
    assert ensemble.burst(leader, BURST, is_last=False) == BURST
    for _ in range(8):
        ensemble.received(leader, 1)
    assert ensemble.burst(second, BURST, is_last=False) == BURST - 8
    ensemble.received(second, 1)  # Whoever follows is as far as the leader.
    assert ensemble.burst(third, BURST, is_last=False) == BURST - 8
    ensemble.received(leader, 20)
    # So few are not worth a request, unless another K is to be tried when they end.
    assert ensemble.burst(late, BURST, is_last=True) == BURST - 28
    assert ensemble.burst(late, BURST, is_last=False) == BURST
    ensemble.end(leader, 0, 1.0, is_behind=False)
    assert ensemble.is_led
    ensemble.end(late, 0, 1.0, is_behind=False)
    assert not ensemble.is_led


def test_a_probe_waits_for_drafts_that_read_what_the_target_said_alone() -> None:
    ensemble = Ensemble()
    completions = [object() for _ in range(10)]
    for _ in completions:
        ensemble.begin(2, 1.0, is_behind=True)
    for who in completions[:8]:
        ensemble.end(who, 2, 2.0, is_behind=True)
        ensemble.begin(2, 2.0, is_behind=False)
    assert ensemble.has_had(2, 2.0)
    assert not ensemble.has_settled(2.0)
    ensemble.end(completions[8], 2, 3.0, is_behind=True)
    ensemble.begin(2, 3.0, is_behind=False)
    assert not ensemble.has_settled(2.0)
    assert ensemble.has_settled(3.0)
