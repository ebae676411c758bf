from __future__ import annotations

import itertools

import pytest

from trtspec.serving.errors import ProtocolError
from trtspec.serving.outcome import Outcome, read_verification

END = 9


def verification(draft: list[int], own: list[int]) -> tuple[list[int], Outcome]:
    """What a target that would say `own` answers, and what that means; by the interface's rules 3 and 4."""
    accepted = 0
    while accepted < len(draft) and draft[accepted] == own[accepted] != END:
        accepted += 1
    if own[accepted] == END:
        return draft[:accepted], Outcome(accepted, ended=True)
    return [*draft[:accepted], own[accepted]], Outcome(accepted, ended=False)


@pytest.mark.parametrize("num_draft", [0, 1, 2, 3])
def test_reads_every_possible_verification(num_draft: int) -> None:
    for draft in itertools.product([1, 2, 3], repeat=num_draft):
        for own in itertools.product([1, 2, 3, END], repeat=num_draft + 1):
            new, meaning = verification(list(draft), list(own))
            assert read_verification(list(draft), new) == meaning


@pytest.mark.parametrize(
    ("draft", "new"),
    [([1, 2], [3, 2]), ([1, 2], [1, 2, 3, 4]), ([1, 2, 3], [1, 3, 3]), ([], [1, 2]), ([1], [2, 1])],
)
def test_an_answer_that_does_not_follow_is_an_error(draft: list[int], new: list[int]) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_verification(draft, new)
    assert (caught.value.draft, caught.value.new) == (draft, new)
