from __future__ import annotations

import pytest

from trtspec.serving.executor import Limits, Request
from trtspec.serving.executors.validation import Refused, validate
from trtspec.serving.text import Text

LIMITS = Limits(max_batch_size=2, max_input_len=20, max_seq_len=24, max_draft_len=4, vocab_size=50)


@pytest.mark.parametrize(
    ("prompt", "draft", "max_tokens", "kept", "room"),
    [
        (10, 0, 5, 0, 5),
        (10, 0, 100, 0, 24 - 10 - 4),  # the longest draft keeps its room
        (10, 4, 100, 4, 24 - 10 - 4),
        (10, 2, 100, 2, 24 - 10 - 2),
        (18, 4, 5, 2, 24 - 18 - 2),  # prompt and draft over max_input_len
        (20, 4, 3, 0, 3),
    ],
)
def test_validation_trims_drafts_and_tokens_to_the_limits_of_the_engine(
    prompt: int, draft: int, max_tokens: int, kept: int, room: int
) -> None:
    valid = validate(Request([1] * prompt, max_tokens, draft_token_ids=[2] * draft), LIMITS)
    assert (valid.prompt_len, len(valid.draft_token_ids), valid.max_tokens) == (prompt, kept, room)


def test_no_room_for_a_single_token() -> None:
    with pytest.raises(Refused, match="no room"):
        validate(Request([1] * 20, 3), LIMITS)


def test_the_request_keeps_its_own_lists() -> None:
    tokens = [1, 2, 3]
    validate(Request(tokens, 3), LIMITS).text.append(4)
    assert tokens == [1, 2, 3]


def test_a_text_is_taken_as_it_is() -> None:
    text = Text([1, 2, 3])
    valid = validate(Request(text, 3), LIMITS)
    text.append(4)
    assert valid.text is text
    assert valid.prompt_len == 3


def test_a_text_packs_what_is_new() -> None:
    text = Text([1, 2, 3])
    first = text.packed(2)
    assert first.tolist() == [1, 2]
    for token_id in range(4, 3000):
        text.append(token_id)
        assert text.packed(len(text))[-1] == token_id
    assert text.packed(len(text)).tolist() == text
    assert (first.tolist(), text.packed(3).tolist()) == ([1, 2], [1, 2, 3])


@pytest.mark.parametrize("wrong", [-1, 50])
def test_tokens_out_of_the_vocabulary_are_refused(wrong: int) -> None:
    for request in (
        Request([1, wrong], 3),
        Request([1], 3, [wrong]),
        Request([1], 3, bad_words=[[1, wrong]]),
    ):
        with pytest.raises(Refused, match="acceptable range"):
            validate(request, LIMITS)
