"""The policy of rounds: how long the next draft of a completion is."""

from __future__ import annotations

from trtspec.serving.executor import Limits, SamplingConfig
from trtspec.serving.state import CompletionState

BURST = 16
"""How many tokens the target decodes alone before the draft is tried again."""


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


def draft_length(state: CompletionState, target: Limits, draft: Limits) -> int:
    """Returns K of the next round; 0 means that the target decodes the rest of the completion alone.

    A round must fit three things: what is still wanted, of which one token is the target's own; the draft
    engine; and the target engine, for which all K + 1 tokens may be part of the next round's prompt. K is 0
    for a text with a token that the draft does not have, as a padded vocabulary may bring.
    """
    length = len(state.text)
    if state.end_reason is not None or length > draft.max_input_len or state.text.largest >= draft.vocab_size:
        return 0
    return max(
        0,
        min(
            state.num_draft_tokens,
            state.num_remaining - 1,
            draft.max_seq_len - draft.max_draft_len - length,
            target.max_input_len - length - 1,
        ),
    )
