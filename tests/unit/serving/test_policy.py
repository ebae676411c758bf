from __future__ import annotations

from dataclasses import replace

import pytest

from trtspec.serving.completion import EndReason
from trtspec.serving.drafters.engine import room
from trtspec.serving.executor import Guide, GuideType, Limits, SamplingConfig
from trtspec.serving.rounds import draft_length
from trtspec.serving.state import CompletionState, unsplittable_options
from trtspec.serving.stop import StopMatcher
from trtspec.serving.text import Text
from trtspec.serving.tokenizer import Tokenizer

TARGET = Limits(max_batch_size=4, max_input_len=100, max_seq_len=108, max_draft_len=8, vocab_size=300)
DRAFT = replace(TARGET, max_draft_len=0)


def state(tokenizer: Tokenizer, length: int, remaining: int, num_draft_tokens: int = 5) -> CompletionState:
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
    text = state(tokenizer, length, remaining)
    assert draft_length(text, target, room(draft, text.text)) == expected


def test_no_draft_when_off_or_ended(tokenizer: Tokenizer) -> None:
    assert draft_length(state(tokenizer, 10, 50, num_draft_tokens=0), TARGET, 50) == 0
    ended = state(tokenizer, 10, 50)
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
    text = state(tokenizer, 10, 50)
    assert room(smaller, text.text) > 0
    text.text.append(200)
    assert room(smaller, text.text) == 0
