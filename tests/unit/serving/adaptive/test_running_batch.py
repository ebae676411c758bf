from __future__ import annotations

import pytest

from trtspec.serving.adaptive.policy import BURST, RunningBatch


def test_the_share_of_texts_with_a_draft_is_that_of_their_steps() -> None:
    batch = RunningBatch()
    assert batch.share(16) == 1
    for _ in range(1000):
        batch.stepped(1, True, 16)
        batch.stepped(3, False, 16)
    assert batch.share(16) == pytest.approx((1 + 15 * 0.25) / 16, abs=0.02)
    assert batch.share(1) == 1


def test_bursts_of_all_end_together() -> None:
    """So that K changes for all at the same token, and rounds are seldom beside bursts."""
    batch = RunningBatch()
    leader, second, third, late = object(), object(), object(), object()
    assert not batch.is_led
    assert batch.burst(leader, BURST, is_last=False) == BURST
    for _ in range(8):
        batch.received(leader, 1)
    assert batch.burst(second, BURST, is_last=False) == BURST - 8
    batch.received(second, 1)  # Whoever follows is as far as the leader.
    assert batch.burst(third, BURST, is_last=False) == BURST - 8
    batch.received(leader, 20)
    # So few are not worth a request, unless another K is to be tried when they end.
    assert batch.burst(late, BURST, is_last=True) == BURST - 28
    assert batch.burst(late, BURST, is_last=False) == BURST
    batch.end(leader, 0, 1.0, is_behind=False)
    assert batch.is_led
    batch.end(late, 0, 1.0, is_behind=False)
    assert not batch.is_led


def test_a_probe_waits_for_drafts_that_read_what_the_target_said_alone() -> None:
    batch = RunningBatch()
    completions = [object() for _ in range(10)]
    for _ in completions:
        batch.begin(2, 1.0, is_behind=True)
    for who in completions[:8]:
        batch.end(who, 2, 2.0, is_behind=True)
        batch.begin(2, 2.0, is_behind=False)
    assert batch.has_had(2, 2.0)
    assert not batch.has_settled(2.0)
    batch.end(completions[8], 2, 3.0, is_behind=True)
    batch.begin(2, 3.0, is_behind=False)
    assert not batch.has_settled(2.0)
    assert batch.has_settled(3.0)
