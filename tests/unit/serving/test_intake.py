from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import tokenizers

from trtspec.serving import intake
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.errors import RequestError
from trtspec.serving.executor import Guide, GuideType, Limits, SamplingConfig
from trtspec.serving.executors.validation import GREEDY_ALONE
from trtspec.serving.intake import MAX_STOP_LENGTH, MAX_STOP_STRINGS, begin, is_long
from trtspec.serving.tokenizer import Tokenizer

LIMITS = Limits(max_batch_size=4, max_input_len=64, max_seq_len=100, max_draft_len=8, vocab_size=300)
GOOD = CompletionRequest("hello world")


def test_a_valid_request_begins_with_its_tokens_and_limits(tokenizer: Tokenizer) -> None:
    state = begin(replace(GOOD, max_tokens=7, num_draft_tokens=3), LIMITS, tokenizer)
    assert state.text == tokenizer.encode("hello world")
    assert (state.num_input_tokens, state.num_output_tokens) == (len(state.text), 0)
    assert (state.num_remaining, state.max_draft_len) == (7, 3)
    assert state.end_ids == tokenizer.end_ids


def test_drafts_as_much_as_the_engine_verifies_unless_told(tokenizer: Tokenizer) -> None:
    assert begin(GOOD, LIMITS, tokenizer).max_draft_len == 8
    assert begin(replace(GOOD, num_draft_tokens=0), LIMITS, tokenizer).max_draft_len == 0
    penalized = replace(GOOD, sampling=SamplingConfig(repetition_penalty=1.2))
    state = begin(penalized, LIMITS, tokenizer)
    assert (state.max_draft_len, state.undrafted_for) == (0, ("repetition_penalty",))
    assert begin(replace(penalized, num_draft_tokens=0), LIMITS, tokenizer).undrafted_for == ()


@pytest.mark.parametrize("max_tokens", [72, 73, 10**12])
def test_max_tokens_is_reduced_to_what_fits_beside_a_draft(tokenizer: Tokenizer, max_tokens: int) -> None:
    request = CompletionRequest(prompt_token_ids=[1] * 20, max_tokens=max_tokens)
    assert begin(request, LIMITS, tokenizer).max_tokens == 100 - 8 - 20


def test_a_guide_ends_where_the_text_may(tokenizer: Tokenizer) -> None:
    guided = replace(LIMITS, guide_types=frozenset(GuideType), resumes_guides=True)
    request = replace(GOOD, guide=Guide(GuideType.JSON), num_draft_tokens=3)
    state = begin(request, guided, tokenizer)
    assert state.guide == Guide(GuideType.JSON, end_ids=tokenizer.end_ids)
    assert (state.max_draft_len, state.undrafted_for) == (3, ())
    assert begin(replace(request, end_id=5), guided, tokenizer).guide == Guide(GuideType.JSON, end_ids=(5,))
    state = begin(request, replace(guided, resumes_guides=False), tokenizer)
    assert (state.max_draft_len, state.undrafted_for) == (0, ("guided_decoding_guide_type",))


def test_an_end_id_of_the_clients_own(tokenizer: Tokenizer) -> None:
    state = begin(replace(GOOD, end_id=5), LIMITS, tokenizer)
    assert state.end_ids == (5,)
    state = begin(replace(GOOD, end_id=NO_END), LIMITS, tokenizer)
    assert state.end_ids == ()


def test_stop_tokens_end_a_text_beside_its_own(tokenizer: Tokenizer) -> None:
    state = begin(replace(GOOD, end_id=5, stop_token_ids=(7, 8)), LIMITS, tokenizer)
    assert state.end_ids == (5, 7, 8)


@pytest.mark.parametrize(
    ("request_", "field", "found"),
    [
        (replace(GOOD, stop_token_ids=(3, 300)), "stop_token_ids", 300),
        (replace(GOOD, stop_token_ids=(3,) * 65), "stop_token_ids", "65 token ids"),
        (CompletionRequest(), "prompt", "missing"),
        (CompletionRequest("a", [1]), "prompt", "given together with prompt_token_ids"),
        (CompletionRequest(""), "prompt", "empty"),
        (CompletionRequest(prompt_token_ids=[]), "prompt_token_ids", "empty"),
        (CompletionRequest(prompt_token_ids=[1] * 65), "prompt_token_ids", "65 tokens"),
        (CompletionRequest("z" * 65), "prompt", "65 tokens"),
        (CompletionRequest("z" * 10**7), "prompt", "10000000 characters"),
        (CompletionRequest("\udcff"), "prompt", "not valid Unicode"),
        (CompletionRequest(prompt_token_ids=[1, 300]), "prompt_token_ids", 300),
        (CompletionRequest(prompt_token_ids=[1, -1]), "prompt_token_ids", -1),
        (replace(GOOD, max_tokens=0), "max_tokens", 0),
        (replace(GOOD, max_tokens=-5), "max_tokens", -5),
        (replace(GOOD, num_draft_tokens=9), "num_draft_tokens", 9),
        (replace(GOOD, num_draft_tokens=-1), "num_draft_tokens", -1),
        (replace(GOOD, stop=("a", "")), "stop", "a string of 0 characters"),
        (replace(GOOD, stop=("a" * (MAX_STOP_LENGTH + 1),)), "stop", "a string of 1025 characters"),
        (replace(GOOD, stop=("a",) * (MAX_STOP_STRINGS + 1)), "stop", "65 strings"),
        (replace(GOOD, stop=("a" * 1024, "b" * 1024) * 2 + ("c",)), "stop", "4097 characters in all"),
        (replace(GOOD, bad_words=("a", "")), "bad_words", "a string of 0 characters"),
        (replace(GOOD, bad_words=("a",) * (MAX_STOP_STRINGS + 1)), "bad_words", "65 strings"),
        (replace(GOOD, bad_words=("a" * 1024,) * 5), "bad_words", "5120 characters in all"),
        (replace(GOOD, bad_words=("\udcff",)), "bad_words", "not valid Unicode"),
        (replace(GOOD, timeout_s=0.0), "timeout", "0.0 s"),
        (replace(GOOD, timeout_s=math.nan), "timeout", "nan s"),
        (replace(GOOD, embedding_bias=(("a", math.nan),)), "embedding_bias_weights", math.nan),
        (replace(GOOD, embedding_bias=(("a", -1.1e6),)), "embedding_bias_weights", -1.1e6),
        (replace(GOOD, embedding_bias=(("", 1.0),)), "embedding_bias_words", "a string of 0 characters"),
        (replace(GOOD, embedding_bias=(("\udcff", 1.0),)), "embedding_bias_words", "not valid Unicode"),
        (replace(GOOD, embedding_bias=(("a", 1.0),) * 301), "embedding_bias_words", "301 in all"),
        (replace(GOOD, embedding_bias=((1, 1.0),) * 301), "embedding_bias_ids", "301 in all"),
        (replace(GOOD, embedding_bias=((300, 1.0),)), "embedding_bias_ids", 300),
        (replace(GOOD, embedding_bias=((-1, 1.0),)), "embedding_bias_ids", -1),
        (replace(GOOD, end_id=300), "end_id", 300),
        (replace(GOOD, end_id=-2), "end_id", -2),
    ],
)
def test_refusals(tokenizer: Tokenizer, request_: CompletionRequest, field: str, found: object) -> None:
    with pytest.raises(RequestError) as caught:
        begin(request_, LIMITS, tokenizer)
    assert caught.value.field == field
    assert caught.value.found is found or caught.value.found == found


@pytest.mark.parametrize(
    ("field", "wrong", "right"),
    [
        ("temperature", [math.nan, math.inf, -0.1], [0, 0.5, 100]),
        ("top_p", [0, -1, 1.01, math.nan], [0.001, 1]),
        ("top_k", [-1], [0, 1, 50]),
        ("min_p", [-0.01, 1.01, math.nan], [0, 0.1, 1]),
        ("seed", [-1, 2**64], [0, 2**64 - 1]),
        ("repetition_penalty", [0, -1, 1e-7, 1.1e6, math.inf, math.nan], [1e-6, 0.5, 1, 2, 1e6]),
        ("presence_penalty", [math.nan, math.inf, 1.1e6], [-2, 0, 2, 1e6]),
        ("frequency_penalty", [math.nan, -math.inf, -3e38], [-1e6, -2, 0, 2]),
        ("min_tokens", [-1], [0, 3]),
    ],
)
def test_sampling_values_out_of_range_are_refused_by_name(
    tokenizer: Tokenizer, field: str, wrong: list[float], right: list[float]
) -> None:
    for value in right:
        begin(replace(GOOD, sampling=SamplingConfig(**{field: value})), LIMITS, tokenizer)  # type: ignore[arg-type]
    for value in wrong:
        with pytest.raises(RequestError) as caught:
            begin(replace(GOOD, sampling=SamplingConfig(**{field: value})), LIMITS, tokenizer)  # type: ignore[arg-type]
        assert caught.value.field == field


def test_a_bias_is_of_the_tokens_of_its_words(tokenizer: Tokenizer) -> None:
    state = begin(replace(GOOD, embedding_bias=(("hello", 1.5), ("h", -2.0))), LIMITS, tokenizer)
    expected = dict.fromkeys(tokenizer.encode("hello", add_special_tokens=False), 1.5)
    [first] = tokenizer.encode("h", add_special_tokens=False)
    expected[first] = expected.get(first, 0.0) - 2.0
    requests = (state.request(3), state.endless_request(3))
    assert [request.embedding_bias for request in requests] == [expected, expected]


def test_a_bias_of_too_many_tokens_is_refused(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "abcdefhijkmn"
    request = replace(GOOD, embedding_bias=((words[:8], 1.0), (words, 1.0), (words, 2.0)))
    monkeypatch.setattr(intake, "MAX_BIASED_TOKENS", 12)
    state = begin(request, LIMITS, tokenizer)
    assert len(state.request(3).embedding_bias) == 12
    monkeypatch.setattr(intake, "MAX_BIASED_TOKENS", 11)
    with pytest.raises(
        RequestError, match=r"^embedding_bias_words is words of 12 .*; allowed: at most 11 in all"
    ):
        begin(request, LIMITS, tokenizer)


def test_a_request_with_many_words_is_long() -> None:
    words = ("a" * 100,) * 6
    assert not is_long(GOOD)
    assert is_long(replace(GOOD, bad_words=words))
    assert is_long(replace(GOOD, embedding_bias=tuple((word, 1.0) for word in words)))
    assert not is_long(replace(GOOD, embedding_bias=tuple((number, 1.0) for number in range(300))))


def test_a_bad_word_that_the_engine_never_bans_is_refused(tokenizer: Tokenizer) -> None:
    *_, last = tokenizer.encode("hello", add_special_tokens=False)
    limits = replace(LIMITS, never_banned=range(last, last + 1))
    begin(replace(GOOD, bad_words=("h",)), limits, tokenizer)
    with pytest.raises(RequestError, match=f"bad_words.*'hello'.*token id {last}"):
        begin(replace(GOOD, bad_words=("hello",)), limits, tokenizer)


def test_bad_words_are_sequences_of_tokens(tokenizer: Tokenizer) -> None:
    state = begin(replace(GOOD, bad_words=("hello", "h")), LIMITS, tokenizer)
    expected = [tokenizer.encode(word, add_special_tokens=False) for word in ("hello", "h")]
    assert state.request(3).bad_words == expected
    assert state.endless_request(3).bad_words == [*expected, *([end_id] for end_id in tokenizer.end_ids)]


def test_an_option_that_the_engine_would_ignore_is_refused(tokenizer: Tokenizer) -> None:
    limits = replace(LIMITS, ignored_options=frozenset({"min_p"}))
    begin(replace(GOOD, sampling=SamplingConfig(min_p=0.0)), limits, tokenizer)
    with pytest.raises(RequestError, match=r"^min_p is 0.1; allowed: 0 or left out, since the target engine"):
        begin(replace(GOOD, sampling=SamplingConfig(min_p=0.1)), limits, tokenizer)


@pytest.mark.parametrize(
    ("sampling", "refused"),
    [
        ({"temperature": 0.0, "top_p": 0.9, "min_p": 0.1}, None),
        ({"temperature": 0.7, "top_k": 1}, None),
        ({"repetition_penalty": 1.0, "presence_penalty": 0.0, "min_tokens": 0}, None),
        ({"temperature": 1.0}, "temperature is 1.0; allowed: 0 or"),
        ({"top_k": 5}, "top_k is 5; allowed: 0 or"),
        ({"top_p": 0.9}, "top_p is 0.9; allowed: 0 or"),
        ({"repetition_penalty": 1.1}, "repetition_penalty is 1.1; allowed: 1 or"),
        ({"min_tokens": 3}, "min_tokens is 3; allowed: 0 or"),
    ],
)
def test_an_engine_that_is_greedy_alone_refuses_what_has_an_effect(
    tokenizer: Tokenizer, sampling: dict[str, Any], refused: str | None
) -> None:
    limits = replace(LIMITS, ignored_options=GREEDY_ALONE)
    request = replace(GOOD, sampling=SamplingConfig(**sampling))
    if refused is None:
        assert begin(request, limits, tokenizer).max_tokens
        return
    with pytest.raises(RequestError, match=f"^{refused} left out, since the target engine would ignore it"):
        begin(request, limits, tokenizer)


def test_a_refusal_names_the_numbers(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"^prompt_token_ids is 70 tokens; allowed: 1 to 64 tokens$"):
        begin(CompletionRequest(prompt_token_ids=[1] * 70), LIMITS, tokenizer)
    with pytest.raises(RequestError, match=r"^prompt_token_ids is 64 tokens; allowed: 1 to 51 tokens$"):
        begin(CompletionRequest(prompt_token_ids=[1] * 64), replace(LIMITS, max_seq_len=60), tokenizer)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt": "see <image_soft_token> here"}, "prompt"),
        ({"bad_words": ("<image_soft_token>",)}, "bad_words"),
        ({"embedding_bias": (("<image_soft_token>", 1.0),)}, "embedding_bias_words"),
    ],
)
def test_a_token_past_the_embedding_is_the_clients_fault(
    tokenizer: Tokenizer, changes: dict[str, Any], field: str
) -> None:
    inner = tokenizers.Tokenizer.from_str(tokenizer.document)
    inner.add_special_tokens([tokenizers.AddedToken("<image_soft_token>", special=True)])
    marked = Tokenizer(inner, tokenizer.end_ids)
    last = marked.size - 1
    begin(GOOD, replace(LIMITS, vocab_size=last), marked)
    begin(replace(GOOD, **changes), replace(LIMITS, vocab_size=last + 1), marked)
    with pytest.raises(RequestError) as caught:
        begin(replace(GOOD, **changes), replace(LIMITS, vocab_size=last), marked)
    assert (caught.value.field, caught.value.allowed) == (field, f"tokens with ids from 0 to {last - 1}")
    assert caught.value.found == f"text with the token '<image_soft_token>', whose id is {last}"
