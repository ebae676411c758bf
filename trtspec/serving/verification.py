"""The result of a step of a model, by rules 2 to 6 of `trtspec.serving.executor`.

Responses to verifications are as TensorRT-LLM returns them for external draft tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.serving.executor import FinishReason
from trtspec.serving.text import common_prefix


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step of a model for one request."""

    token_ids: list[int]
    """The new tokens."""
    finish_reason: FinishReason
    """`NOT_FINISHED` if another step follows."""


def decode(chosen: int, end_id: int | None, room: int) -> StepResult:
    """Returns the result of ordinary decoding that chose `chosen`, with `room` tokens left to generate."""
    if chosen == end_id:
        return StepResult([], FinishReason.END_ID)
    return StepResult([chosen], FinishReason.LENGTH if room == 1 else FinishReason.NOT_FINISHED)


def verify(draft: list[int], chosen: list[int], end_id: int | None, room: int) -> StepResult:
    """Returns the result of one verification, after which the request is finished.

    `chosen` has the target's own token after each prefix of the draft, `len(draft) + 1` in all. Draft tokens
    are accepted up to the first that differs. The target's own token at that position, or after the whole
    draft, is the last one.
    """
    accepted = common_prefix(draft, chosen, len(draft))
    tokens = chosen[: min(accepted + 1, room)]
    if end_id in tokens:
        return StepResult(tokens[: tokens.index(end_id)], FinishReason.END_ID)
    return StepResult(tokens, FinishReason.LENGTH)
