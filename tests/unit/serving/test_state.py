"""None"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import tokenizers

from trtspec.serving.completion import Delta, EndReason
from trtspec.serving.drafters.engine import room
from trtspec.serving.executor import Guide, GuideType, Limits, Request, SamplingConfig
from trtspec.serving.rounds import draft_length
from trtspec.serving.state import CompletionState, StopMatcher, unsplittable_options
from trtspec.serving.text import Text
from trtspec.serving.tokenizer import Tokenizer


def shown_by(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher, text = StopMatcher(stops), ""
    for piece in pieces:
        text += matcher.push(piece)
        if matcher.found:
            return text, True
    return text + matcher.flush(), False


def naive(stops: list[str], text: str) -> tuple[str, bool]:
    """The text before the stop string that ends first; of those that end together, before the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def could_begin(stops: list[str], text: str) -> str:
    """The longest end of `text` that is the beginning of a stop string."""
    for start in range(len(text)):
        if any(stop.startswith(text[start:]) for stop in stops):
            return text[start:]
    return ""


def cut(dice: random.Random, text: str) -> list[str]:
    borders = sorted(dice.randrange(len(text) + 1) for _ in range(dice.randrange(6)))
    return [text[a:b] for a, b in zip([0, *borders], [*borders, len(text)], strict=True)]


def test_equals_a_naive_search_on_random_strings() -> None:
    dice = random.Random(0)
    found = 0
    for _ in range(20_000):
        alphabet = dice.choice(["ab", "abc", "aé🙂"])
        text = "".join(dice.choices(alphabet, k=dice.randrange(20)))
        stops = ["".join(dice.choices(alphabet, k=dice.randrange(1, 6))) for _ in range(dice.randrange(1, 5))]
        expected = naive(stops, text)
        assert shown_by(stops, cut(dice, text)) == expected, (stops, text)
        found += expected[1]
    assert 5_000 < found < 19_000


def test_an_included_stop_string_ends_the_text() -> None:
    matcher = StopMatcher(["bc", "c"], is_included=True)
    assert [matcher.push(piece) for piece in ("a", "b", "cd")] == ["a", "", "bc"]
    assert (matcher.found, matcher.flush()) == (True, "")


def test_holds_back_only_what_could_begin_a_stop_string() -> None:
    dice = random.Random(1)
    for _ in range(5_000):
        text = "".join(dice.choices("abc", k=dice.randrange(15)))
        stops = ["".join(dice.choices("abc", k=dice.randrange(2, 7))) for _ in range(dice.randrange(1, 4))]
        matcher = StopMatcher(stops)
        shown = matcher.push(text)
        if not matcher.found:
            assert text[len(shown) :] == could_begin(stops, text)


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["\n\n"], ["one\n", "\ntwo"], "one"),
        (["END"], ["an E", "N", "EN", "D."], "an EN"),
        (["b", "ab"], ["xab"], "x"),
        (["abcd", "bc"], ["xabcd"], "xa"),
        (["aab"], ["aaab"], "a"),
        (["x"], ["x"], ""),
    ],
)
def test_cuts_before_the_stop_string_that_ends_first(
    stops: list[str], pieces: list[str], expected: str
) -> None:
    assert shown_by(stops, pieces) == (expected, True)


def test_lets_everything_through_without_stop_strings() -> None:
    assert StopMatcher([]).push("any\x00thing") == "any\x00thing"


def test_flush_gives_back_an_unfinished_stop_string_once() -> None:
    matcher = StopMatcher(["stop"])
    assert (matcher.push("do not sto"), matcher.flush(), matcher.flush()) == ("do not ", "sto", "")


PROMPT = [1, 2, 3]


@pytest.fixture
def state(tokenizer: Tokenizer) -> CompletionState:
    return CompletionState(
        text=Text(PROMPT),
        num_input_tokens=len(PROMPT),
        max_tokens=12,
        min_tokens=0,
        max_draft_len=4,
        sampling=SamplingConfig(temperature=1.0, seed=100),
        end_ids=(7, 8),
        stop=StopMatcher(["wo!"]),
        detokenizer=tokenizer.detokenizer(),
    )


def test_a_request_continues_what_there_is(state: CompletionState, tokenizer: Tokenizer) -> None:
    said = tokenizer.encode("abc")
    sampling = SamplingConfig(temperature=1.0, seed=100)
    assert state.request(4) == Request(Text(PROMPT), 4, end_id=7, sampling=sampling)
    state.take(said)
    sampling = SamplingConfig(temperature=1.0, seed=103)
    request = state.request(9, streaming=True)
    assert request == Request(Text(PROMPT + said), 9, end_id=7, sampling=sampling, streaming=True)
    assert request.input_token_ids is state.text


def test_nothing_ends_a_text_before_min_tokens(state: CompletionState, tokenizer: Tokenizer) -> None:
    state.min_tokens = 4
    assert state.num_endless == 4
    request = state.endless_request(4)
    assert (request.end_id, request.bad_words, request.max_tokens) == (None, [[7], [8]], 4)
    assert state.take([50, 8]).token_ids == [50, 8]
    assert (state.num_endless, state.end_reason) == (2, None)
    assert state.take([50, 51, 8, 50]).token_ids == [50, 51]
    assert state.end_reason is EndReason.END_ID


def test_a_text_without_end_tokens_ends_at_its_length_anyway(state: CompletionState) -> None:
    state.min_tokens, state.end_ids = 4, ()
    assert state.num_endless == 0


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


def test_an_end_token_in_the_same_run_does_not_follow_a_stop_string(
    state: CompletionState, tokenizer: Tokenizer
) -> None:
    state.stop = StopMatcher(["wo!"], is_included=True)
    delta = state.take(tokenizer.encode("wo!bc"), EndReason.END_ID)
    assert (delta.text, state.end_reason) == ("wo!", EndReason.STOP)


def test_nothing_follows_a_stop_string(
    state: CompletionState, tokenizer: Tokenizer, byte_level: tokenizers.Tokenizer
) -> None:
    """Not even the beginning of a character in the same token."""
    said = [*tokenizer.encode("wo"), byte_level.token_to_id("!Ã")]
    whole = tokenizer.detokenizer()
    assert [*map(whole.push, said), whole.flush()] == ["w", "o", "!", "�"]
    assert (state.take(said).text, state.end_reason) == ("", EndReason.STOP)


def test_text_held_back_for_a_stop_string_is_shown_at_the_end(
    state: CompletionState, tokenizer: Tokenizer
) -> None:
    first_byte = tokenizer.encode("漢")[0]
    delta = state.take([*tokenizer.encode("a wo"), first_byte])
    assert delta.text == "a "
    delta = state.take([], EndReason.END_ID)
    assert (delta.text, delta.token_ids) == ("wo�", [])
    assert delta.completion is not None
    assert delta.completion.end_reason is EndReason.END_ID


TARGET = Limits(max_batch_size=4, max_input_len=100, max_seq_len=108, max_draft_len=8, vocab_size=300)
DRAFT = replace(TARGET, max_draft_len=0)


def state_of(tokenizer: Tokenizer, length: int, remaining: int, num_draft_tokens: int = 5) -> CompletionState:
    return CompletionState(
        text=Text([0] * length),
        num_input_tokens=length,
        max_tokens=remaining,
        min_tokens=0,
        max_draft_len=num_draft_tokens,
        sampling=SamplingConfig(),
        end_ids=(),
        stop=StopMatcher(()),
        detokenizer=tokenizer.detokenizer(),
    )


@pytest.mark.parametrize(
    ("length", "remaining", "target", "draft", "expected"),
    [
        (10, 50, TARGET, DRAFT, 5),
        (10, 6, TARGET, DRAFT, 5),
        (10, 5, TARGET, DRAFT, 4),
        (10, 1, TARGET, DRAFT, 0),
        (94, 50, TARGET, DRAFT, 5),
        (95, 50, TARGET, DRAFT, 4),
        (99, 50, TARGET, DRAFT, 0),
        (100, 50, TARGET, DRAFT, 0),
        (50, 50, TARGET, replace(DRAFT, max_input_len=50), 5),
        (51, 50, TARGET, replace(DRAFT, max_input_len=50), 0),
        (50, 50, TARGET, replace(DRAFT, max_seq_len=53), 3),
        (50, 50, TARGET, replace(DRAFT, max_seq_len=53, max_draft_len=2), 1),
        (50, 50, TARGET, replace(DRAFT, max_seq_len=40), 0),
    ],
)
def test_a_draft_fits_the_budget_and_both_engines(
    tokenizer: Tokenizer, length: int, remaining: int, target: Limits, draft: Limits, expected: int
) -> None:
    text = state_of(tokenizer, length, remaining)
    assert draft_length(text, target, room(draft, text.text)) == expected


def test_no_draft_when_off_or_ended(tokenizer: Tokenizer) -> None:
    assert draft_length(state_of(tokenizer, 10, 50, num_draft_tokens=0), TARGET, 50) == 0
    ended = state_of(tokenizer, 10, 50)
    ended.end_reason = EndReason.STOP
    assert draft_length(ended, TARGET, 50) == 0


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SamplingConfig(), ()),
        (SamplingConfig(temperature=0.8, top_p=0.9, seed=1, min_p=0.1), ()),
        (
            SamplingConfig(repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, min_tokens=0),
            (),
        ),
        (SamplingConfig(repetition_penalty=1.1), ("repetition_penalty",)),
        (
            SamplingConfig(presence_penalty=0.5, frequency_penalty=-0.5),
            ("presence_penalty", "frequency_penalty"),
        ),
        (SamplingConfig(min_tokens=1), ()),
    ],
)
def test_penalties_make_a_completion_one_request(sampling: SamplingConfig, expected: tuple[str, ...]) -> None:
    assert unsplittable_options(sampling, None, resumes_guides=False) == expected


@pytest.mark.parametrize(
    ("resumes_guides", "expected"), [(True, ()), (False, ("guided_decoding_guide_type",))]
)
def test_a_guide_makes_a_completion_one_request_where_the_engine_begins_anew(
    resumes_guides: bool, expected: tuple[str, ...]
) -> None:
    assert unsplittable_options(SamplingConfig(), Guide(GuideType.JSON), resumes_guides) == expected


def test_a_text_that_the_draft_cannot_read_is_not_drafted(tokenizer: Tokenizer) -> None:
    smaller = replace(DRAFT, vocab_size=200)
    text = state_of(tokenizer, 10, 50)
    assert room(smaller, text.text) > 0
    text.text.append(200)
    assert room(smaller, text.text) == 0
