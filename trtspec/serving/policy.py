"""The policy of rounds: how long the next draft of a completion is."""

from __future__ import annotations

from trtspec.serving.executor import Limits, SamplingConfig
from trtspec.serving.state import CompletionState


def may_split(sampling: SamplingConfig) -> bool:
    """Says whether a completion may be split into several requests without a change to its text.

    Penalties forbid that: an engine computes them over the tokens that it generated itself, and a round gets
    the tokens of earlier rounds as its prompt.
    """
    return (
        sampling.repetition_penalty in (None, 1)
        and not sampling.presence_penalty
        and not sampling.frequency_penalty
    )


def draft_length(state: CompletionState, target: Limits, room: int) -> int:
    """Returns K of the next round; 0 means that the target decodes the rest of the completion alone.

    A round must fit three things: what is still wanted, of which one token is the target's own; the
    `room` of the drafter; and the target engine, for which all K + 1 tokens may be part of the next round's
    prompt.
    """
    if state.end_reason is not None:
        return 0
    behind = target.max_input_len - len(state.text) - 1
    return max(0, min(state.num_draft_tokens, state.num_remaining - 1, behind, room))
