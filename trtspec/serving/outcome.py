"""What a verification says: the reading side of TensorRT-LLM's external draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """`num_verified` draft tokens were looked at, as far as the answer tells, and `num_accepted` survived."""

    num_verified: int
    num_accepted: int


def read_verification(draft: Sequence[int], new: Sequence[int], ended: bool) -> Outcome:
    """Reads the `new` tokens of a verification of `draft`, which was asked for `len(draft) + 1` of them.

    Every one of them is the target's own, whatever became of the draft: an engine may have discarded the end
    of it, or all, and says nothing of that. So this is for the statistics alone, in which what was discarded
    does not count, as far as it shows:

    * Tokens after one that differs can only be ordinary decoding: nothing was verified.
    * An answer that is a beginning of the draft, and not known to have `ended` the text, is a shorter draft
      with the target's own token after it; what lies beyond was not verified.
    """
    agreeing = 0
    for ours, theirs in zip(draft, new, strict=False):
        if ours != theirs:
            break
        agreeing += 1
    if agreeing < len(new) - 1 and agreeing < len(draft):
        return Outcome(0, 0)
    if agreeing == len(new) and not ended:
        verified = max(agreeing - 1, 0)
        return Outcome(verified, verified)
    return Outcome(len(draft), agreeing)
