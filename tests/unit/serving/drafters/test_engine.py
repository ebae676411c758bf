"""What the draft engine is asked: nothing that it would refuse."""

from __future__ import annotations

from trtspec.serving.drafters.engine import draft_request
from trtspec.serving.executor import Limits, Request
from trtspec.serving.executors.validation import validate

DRAFT = Limits(max_batch_size=4, max_input_len=63, max_seq_len=64, max_draft_len=0, vocab_size=90)


def test_tokens_that_the_draft_lacks_are_not_in_a_request() -> None:
    """A padded vocabulary of the target has more tokens; any of them may end a text or be banned."""
    target_only = Request(
        [1, 2], 4, end_id=95, bad_words=[[3, 95], [95], [3, 4]], embedding_bias={5: 2.0, 95: -1.0}
    )
    request = draft_request(target_only, DRAFT)
    assert (request.end_id, request.bad_words, request.embedding_bias) == (None, [[3, 4]], {5: 2.0})
    validate(request, DRAFT)


def test_what_the_draft_knows_stays() -> None:
    request = Request([1, 2], 4, end_id=89, bad_words=[[89]], embedding_bias={89: 2.0})
    assert draft_request(request, DRAFT) == request
