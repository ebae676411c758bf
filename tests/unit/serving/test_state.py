from __future__ import annotations

import pytest
import tokenizers

from trtspec.serving.completion import Delta, EndReason
from trtspec.serving.executor import Request, SamplingConfig
from trtspec.serving.state import CompletionState
from trtspec.serving.stop import StopMatcher
from trtspec.serving.tokenizer import Tokenizer

PROMPT = [1, 2, 3]


@pytest.fixture
def state(tokenizer: Tokenizer) -> CompletionState:
    return CompletionState(
        token_ids=list(PROMPT),
        num_input_tokens=len(PROMPT),
        max_tokens=12,
        num_draft_tokens=4,
        sampling=SamplingConfig(temperature=1.0, seed=100),
        end_id=7,
        stop_token_ids=frozenset([8]),
        stop=StopMatcher(["wo!"]),
        detokenizer=tokenizer.detokenizer(),
    )


def test_a_request_continues_what_there_is(state: CompletionState, tokenizer: Tokenizer) -> None:
    said = tokenizer.encode("abc")
    request = state.request(4)
    state.take(said)
    assert request == Request((1, 2, 3), 4, end_id=7, sampling=SamplingConfig(temperature=1.0, seed=100))
    sampling = SamplingConfig(temperature=1.0, seed=103)
    assert state.request(9, streaming=True) == Request(
        (*PROMPT, *said), 9, end_id=7, sampling=sampling, streaming=True
    )


def test_a_run_is_taken_up_to_max_tokens(state: CompletionState, tokenizer: Tokenizer) -> None:
    said = tokenizer.encode("abcdefghijkz")
    assert state.take(said[:5]) == Delta("abcde", said[:5])
    assert (state.num_output_tokens, state.num_remaining, state.end_reason) == (5, 7, None)
    last = state.take(said[5:])
    assert (last.text, last.token_ids) == ("fghijkz", said[5:])
    assert last.completion is not None
    assert (last.completion.end_reason, state.end_reason) == (EndReason.LENGTH, EndReason.LENGTH)
    assert (last.completion.num_input_tokens, last.completion.num_output_tokens) == (3, 12)


def test_a_run_is_cut_at_an_end_token_that_engines_do_not_know(
    state: CompletionState, tokenizer: Tokenizer
) -> None:
    said = tokenizer.encode("ab")
    delta = state.take([*said, 8, *said])
    assert (delta.text, delta.token_ids, state.end_reason) == ("ab", said, EndReason.END_ID)


def test_a_run_is_cut_after_the_token_that_completes_a_stop_string(
    state: CompletionState, tokenizer: Tokenizer
) -> None:
    assert state.take(tokenizer.encode("a w")).text == "a "
    said = tokenizer.encode("o!bc")
    delta = state.take(said)
    assert (delta.text, delta.token_ids, state.end_reason) == ("", said[:2], EndReason.STOP)


def test_nothing_follows_a_stop_string(
    state: CompletionState, tokenizer: Tokenizer, byte_level: tokenizers.Tokenizer
) -> None:
    """Not even the beginning of a character in the same token."""
    said = [*tokenizer.encode("wo"), byte_level.token_to_id("!Ã")]
    whole = tokenizer.detokenizer()
    assert [*map(whole.push, said), whole.flush()] == ["w", "o", "!", "�"]
    assert (state.take(said).text, state.end_reason) == ("", EndReason.STOP)


@pytest.mark.parametrize("reason", [EndReason.END_ID, EndReason.CANCELLED])
def test_what_was_held_back_is_shown_at_the_end(
    state: CompletionState, tokenizer: Tokenizer, reason: EndReason
) -> None:
    first_byte = tokenizer.encode("漢")[0]
    delta = state.take([*tokenizer.encode("a wo"), first_byte])
    assert delta.text == "a "
    delta = state.take([], reason)
    assert (delta.text, delta.token_ids) == ("wo�", [])
    assert delta.completion is not None
    assert delta.completion.end_reason is reason
