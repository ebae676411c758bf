"""The reading of a verification's answer, as TensorRT-LLM gives it for external draft tokens."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.serving.text import common_prefix


@dataclass(frozen=True, slots=True)
class VerificationCounts:
    """The numbers of draft tokens that a verification looked at, as far as its answer tells, and accepted."""

    num_verified: int
    num_accepted: int


def read_verification(draft: list[int], new: list[int], ended: bool) -> VerificationCounts:
    """Returns the counts of a verification of `draft` that was asked for `len(draft) + 1` tokens.

    All `new` tokens are the target's own in any case, so the counts serve the statistics alone. An engine may
    have discarded the end of the draft without saying so (rule 7 of `trtspec.serving.executor`); discarded
    tokens do not count, as far as the answer shows them:

    * Tokens after one that differs can only be ordinary decoding: nothing was verified.
    * An answer that is a beginning of the draft, and not known to have `ended` the text, is that of a shorter
      draft with the target's own token after it; the rest was not verified.
    """
    agreeing = common_prefix(draft, new, min(len(draft), len(new)))
    if agreeing < len(new) - 1 and agreeing < len(draft):
        return VerificationCounts(0, 0)
    if agreeing == len(new) and not ended:
        verified = max(agreeing - 1, 0)
        return VerificationCounts(verified, verified)
    return VerificationCounts(len(draft), agreeing)
