"""The reading of a verification's answer, as TensorRT-LLM gives it for external draft tokens."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.serving.executor import FinishReason, Response
from trtspec.serving.text import common_prefix


@dataclass(frozen=True, slots=True)
class VerificationCounts:
    """The numbers of draft tokens of one verification."""

    num_verified: int
    """The number that it looked at, as far as its answer tells."""
    num_accepted: int
    """The number that it accepted."""


def has_ended(draft: list[int], response: Response) -> bool:
    """Says whether the verification of `draft`, asked for `len(draft) + 1` tokens, met the end of the text.

    What stands in place of a rejected token is another one, so an answer that only repeats what was verified
    lacks its last token: the end. An engine that does not say what it verified leaves that open.
    """
    new, kept = response.token_ids, response.num_verified
    if not new or response.finish_reason is FinishReason.END_ID:
        return True
    if not draft or kept is None:
        return False
    if not kept:  # Nothing was left of the draft: this was ordinary decoding.
        return len(new) <= len(draft)
    return len(new) <= kept and new == draft[: len(new)]


def read_verification(
    draft: list[int], new: list[int], ended: bool, kept: int | None = None
) -> VerificationCounts:
    """Returns the counts of a verification of `draft` that was asked for `len(draft) + 1` tokens.

    All `new` tokens are the target's own in any case, so the counts serve the statistics alone. An engine may
    have discarded the end of the draft (rule 7 of `trtspec.serving.executor`), and says so by what it `kept`.
    Where it says nothing, discarded tokens do not count as far as the answer shows them:

    * Tokens after one that differs can only be ordinary decoding: nothing was verified.
    * An answer that is a beginning of the draft, and not known to have `ended` the text, is that of a shorter
      draft with the target's own token after it; the rest was not verified.
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
