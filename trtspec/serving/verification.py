"""The result of a step by rules 2 to 6 of `trtspec.serving.executor`, and the reading of a verification's.

Responses to verifications are as TensorRT-LLM returns them for external draft tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.serving.executor import FinishReason, Response
from trtspec.serving.text import common_prefix


@dataclass(slots=True)
class VerificationCounts:
    """The numbers of draft tokens that one verification verified and accepted."""

    num_verified: int
    """The number of verified draft tokens, as far as the response shows it."""
    num_accepted: int


def has_ended(draft: list[int], response: Response) -> bool:
    """Says whether the verification of `draft`, asked for `len(draft) + 1` tokens, met an end token.

    At the position of a rejected token the target's token differs. So a response that only repeats verified
    tokens lacks the last one, which was the end token. An engine that does not report `num_verified` leaves
    that open.
    """
    new, kept = response.token_ids, response.num_verified
    if not new or response.finish_reason is FinishReason.END_ID:
        return True
    if not draft or kept is None:
        return False
    if not kept:  # The engine discarded the draft: this was ordinary decoding.
        return len(new) <= len(draft)
    return len(new) <= kept and new == draft[: len(new)]


def read_verification(
    draft: list[int], new: list[int], ended: bool, kept: int | None = None
) -> VerificationCounts:
    """Returns the counts of a verification of `draft` that was asked for `len(draft) + 1` tokens.

    All `new` tokens are the target's own, so the counts serve the statistics alone. An engine may discard the
    end of the draft (rule 7 of `trtspec.serving.executor`); `kept` is the length of the rest. If it is None,
    the response shows some discarded tokens, which do not count:

    * Tokens after one that differs come from ordinary decoding: nothing was verified.
    * A response that is a prefix of the draft and has not `ended` comes from a shorter draft with one token
      of the target's own after it. The rest was not verified.
    """
    if kept is not None:
        return VerificationCounts(kept, common_prefix(draft, new, min(kept, len(new))))
    agreeing = common_prefix(draft, new, min(len(draft), len(new)))
    if agreeing < len(new) - 1 and agreeing < len(draft):
        return VerificationCounts(0, 0)
    if agreeing == len(new) and not ended:
        verified = max(agreeing - 1, 0)
        return VerificationCounts(verified, verified)
    return VerificationCounts(len(draft), agreeing)


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
