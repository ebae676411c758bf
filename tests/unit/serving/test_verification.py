"""None"""

from __future__ import annotations

import itertools

import pytest

from trtspec.serving.executor import FinishReason, Response
from trtspec.serving.rounds import VerificationCounts, has_ended, read_verification
from trtspec.serving.verification import decode, verify

END = 9


def answer(draft: list[int], own: list[int]) -> list[int]:
    """What a target that would say `own` answers to a draft, of which nothing is discarded."""
    accepted = 0
    while accepted < len(draft) and draft[accepted] == own[accepted] != END:
        accepted += 1
    return [*draft[:accepted], *([] if own[accepted] == END else [own[accepted]])]


@pytest.mark.parametrize("num_draft", [1, 2, 3])
def test_a_verification_counts_the_draft_tokens_that_agree_as_accepted(num_draft: int) -> None:
    for draft in map(list, itertools.product([1, 2, 3], repeat=num_draft)):
        for own in itertools.product([1, 2, 3], repeat=num_draft + 1):
            new = answer(draft, list(own))
            assert read_verification(draft, new, ended=False) == VerificationCounts(num_draft, len(new) - 1)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_draft_tokens_that_the_engine_discarded_do_not_count_as_verified(kept: int) -> None:
    """The engine kept `kept` of four. What it cut behind a token that it rejected does not show."""
    draft = [1, 2, 3, 1]
    for own in itertools.product([1, 2, 3], repeat=5):
        new = answer(draft[:kept], list(own))
        outcome = read_verification(draft, new, ended=False)
        assert outcome.num_accepted == len(new) - 1
        if len(new) - 1 == kept and new == draft[: kept + 1]:
            assert outcome.num_verified == kept


def test_ordinary_decoding_verifies_nothing() -> None:
    assert read_verification([1, 2, 3], [1, 3, 3, 2], ended=False) == VerificationCounts(0, 0)
    assert read_verification([1, 2], [3, 1, 2], ended=False) == VerificationCounts(0, 0)
    assert read_verification([], [3], ended=False) == VerificationCounts(0, 0)


@pytest.mark.parametrize("new", [[], [1], [1, 2], [1, 2, 3]])
def test_an_end_within_the_draft_is_a_rejection(new: list[int]) -> None:
    assert read_verification([1, 2, 3], new, ended=True) == VerificationCounts(3, len(new))
    assert read_verification([1, 2, 3], new, ended=False).num_accepted == max(len(new) - 1, 0)


@pytest.mark.parametrize("kept", range(4))
def test_an_end_is_known_from_what_was_verified(kept: int) -> None:
    """Whatever the engine cut of the draft: ordinary decoding if that is all of it."""
    draft = [1, 2, 1]
    for own in itertools.product([1, 2, END], repeat=4):
        said = list(own[: own.index(END)]) if END in own else list(own)
        new = answer(draft[:kept], list(own)) if kept else said
        ended = len(new) < len(own) and own[len(new)] == END and new == list(own[: len(new)])
        ended = ended and (not kept or (len(new) <= kept and new == draft[: len(new)]))
        response = Response(1, new, True, FinishReason.NOT_FINISHED, num_verified=kept)
        assert has_ended(draft, response) is ended
        counts = read_verification(draft, new, ended, kept)
        agreeing = next((i for i in range(kept) if i == len(new) or new[i] != draft[i]), kept)
        assert counts == VerificationCounts(kept, agreeing)


def test_an_engine_that_says_nothing_leaves_the_end_open() -> None:
    assert not has_ended([1, 2], Response(1, [1], True))
    assert has_ended([1, 2], Response(1, [], True))


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
