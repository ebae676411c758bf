"""What a verification says: the reading side of TensorRT-LLM's external draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.serving.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Outcome:
    """`num_accepted` draft tokens survived; `ended` if the end token came after them."""

    num_accepted: int
    ended: bool


def read_verification(draft: Sequence[int], new: Sequence[int]) -> Outcome:
    """Reads the `new` tokens of a verification of `draft`, which was asked for `len(draft) + 1` of them.

    The end token is never among them, so an answer that stops within the draft means that it came there.
    Nothing else can look like it: the target's own token after n < K accepted ones differs from draft token
    n. Raises `ProtocolError` for an answer that does not follow from the draft.
    """
    num_new = len(new)
    agreeing = 0
    for ours, theirs in zip(draft, new, strict=False):
        if ours != theirs:
            break
        agreeing += 1
    if agreeing == num_new:
        return Outcome(agreeing, ended=True)
    if agreeing == num_new - 1:
        return Outcome(agreeing, ended=False)
    raise ProtocolError(list(draft), list(new))
