"""The ladder: each step leads to the next and back, from wherever a recipe or a file stands."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from trtspec.deployment.rollout import steps
from trtspec.deployment.rollout.steps import ALL, OFF, STEPS
from trtspec.serving.rollout.state import RolloutState

states = st.builds(RolloutState, st.sampled_from(["speculate", "shadow"]), st.floats(0, 1))


def test_each_leads_to_the_next_and_back() -> None:
    names = [step.name for step in STEPS]
    assert names == ["off", "shadow", "5 %", "25 %", "50 %", "all"]
    for low, high in pairwise(STEPS):
        assert steps.after(low.state) is high
        assert steps.before(high.state) is low
    assert (steps.before(OFF.state), steps.after(ALL.state)) == (None, None)
    assert [steps.name_of(step.state) for step in STEPS] == names


@given(states)
def test_anywhere_else_is_between_two_of_them(state: RolloutState) -> None:
    """Going on never gives drafts to fewer, going back never to more."""
    after, before = steps.after(state), steps.before(state)
    share = state.share_of("speculate")
    assert after is None or after.state.share_of("speculate") >= share
    assert before is None or before.state.share_of("speculate") <= share
    assert before != after
    assert (after is None) == (share == 1)
    assert (before is None) == (state.share == 0)


def test_a_share_that_is_no_step_has_a_name() -> None:
    assert steps.name_of(RolloutState("speculate", 0.1)) == "10 %"
    assert steps.name_of(RolloutState("shadow", 0.125)) == "shadow 12.5 %"
    assert steps.after(RolloutState("speculate", 0.1)) is STEPS[3]
    assert steps.before(RolloutState("speculate", 0.1)) is STEPS[2]
