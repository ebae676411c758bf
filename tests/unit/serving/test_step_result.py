from __future__ import annotations

import pytest

from trtspec.serving.executor import FinishReason
from trtspec.serving.verification import decode, verify


@pytest.mark.parametrize(
    ("draft", "chosen", "end_id", "room", "tokens", "reason"),
    [
        ([1, 2, 3], [1, 2, 3, 4], None, 9, [1, 2, 3, 4], "LENGTH"),
        ([1, 2, 3], [1, 9, 8, 7], None, 9, [1, 9], "LENGTH"),
        ([1, 2, 3], [9, 2, 3, 4], None, 9, [9], "LENGTH"),
        ([1, 2, 3], [1, 2, 3, 4], 4, 9, [1, 2, 3], "END_ID"),
        ([1, 2, 3], [1, 2, 3, 4], 2, 9, [1], "END_ID"),
        ([1, 2, 3], [5, 2, 3, 4], 5, 9, [], "END_ID"),
        ([1, 2, 3], [5, 2, 3, 4], 2, 9, [5], "LENGTH"),
        ([1, 2, 3], [1, 2, 3, 4], None, 2, [1, 2], "LENGTH"),
        ([1, 2, 3], [1, 2, 3, 4], 3, 2, [1, 2], "LENGTH"),
    ],
)
def test_verify(
    draft: list[int], chosen: list[int], end_id: int | None, room: int, tokens: list[int], reason: str
) -> None:
    outcome = verify(draft, chosen, end_id, room)
    assert (outcome.token_ids, outcome.finish_reason) == (tokens, FinishReason[reason])


def test_decode() -> None:
    assert decode(5, 5, 3).finish_reason is FinishReason.END_ID
    assert decode(5, 5, 3).token_ids == []
    assert decode(5, None, 3).finish_reason is FinishReason.NOT_FINISHED
    assert (decode(5, 4, 1).token_ids, decode(5, 4, 1).finish_reason) == ([5], FinishReason.LENGTH)
