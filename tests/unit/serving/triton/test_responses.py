"""Plain types to tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trtspec.serving.completion import Completion, EndReason
from trtspec.serving.executor import LogProb
from trtspec.serving.stats import SpeculationCounts
from trtspec.serving.triton.requests import ResponseOptions
from trtspec.serving.triton.responses import TextChunk, arrays

EVERYTHING = ResponseOptions(perf_metrics=True, num_input_tokens=True, num_output_tokens=True)
DONE = Completion(
    EndReason.LENGTH, 5, 9, SpeculationCounts(2, 8, 6, [2, 2, 1, 1]), max_draft_len=4, num_cached_tokens=3
)


def test_a_piece_of_text_is_all_there_is() -> None:
    (text,) = arrays(TextChunk("é"), EVERYTHING).values()

    assert text.shape == (1, 1)
    assert text.dtype == np.object_
    assert text[0, 0] == "é".encode()


def test_the_last_has_the_counts_that_are_wanted() -> None:
    made = arrays(TextChunk("", DONE), EVERYTHING)

    # One verification accepted two tokens, the other all four.
    histogram = made.pop("acceptance_histogram")
    assert (histogram.tolist(), histogram.dtype) == ([[0, 0, 1, 0, 1]], np.dtype("int32"))
    assert {name: array[0, 0] for name, array in made.items()} == {
        "text_output": b"",
        "finish_reason": b"length",
        "num_input_tokens": 5,
        "num_output_tokens": 9,
        "num_cached_tokens": 3,
        "acceptance_rate": 0.75,
        "total_accepted_draft_tokens": 6,
        "total_draft_tokens": 8,
        "num_spec_steps": 2,
    }
    assert {array.dtype for array in made.values()} == {np.dtype("O"), np.dtype("int32"), np.dtype("float32")}
    assert {array.shape for array in made.values()} == {(1, 1)}


def test_an_unknown_number_of_cached_tokens_is_left_out_of_the_response() -> None:
    chunk = TextChunk("", replace(DONE, num_cached_tokens=None))
    assert "num_cached_tokens" not in arrays(chunk, EVERYTHING)


def test_nothing_comes_that_was_not_asked_for() -> None:
    assert arrays(TextChunk("a", DONE), ResponseOptions()).keys() == {"text_output", "finish_reason"}


def test_one_of_several_says_which_it_is() -> None:
    made = arrays(TextChunk("a", sequence_index=2), ResponseOptions(sequence_index=True))["sequence_index"]

    assert (made.tolist(), made.dtype) == ([[2]], np.dtype("int32"))


def test_log_probabilities_have_the_shape_of_one_beam() -> None:
    made = arrays(
        TextChunk("a", log_probs=[LogProb(-0.5), LogProb(-0.25)], token_ids=[7, 8]), ResponseOptions()
    )
    values, tokens = made["output_log_probs"], made["output_ids"]

    assert (values.tolist(), values.dtype) == ([[[-0.5, -0.25]]], np.dtype("float32"))
    assert (tokens.tolist(), tokens.dtype) == ([[[7, 8]]], np.dtype("int32"))
    assert not [name for name in made if "top" in name]


def test_tokens_come_alone_where_they_are_asked_for() -> None:
    made = arrays(TextChunk("a", token_ids=[7, 8]), ResponseOptions(output_ids=True))

    assert made.keys() == {"text_output", "output_ids"}
    assert made["output_ids"].tolist() == [[[7, 8]]]
    assert "output_ids" not in arrays(TextChunk("a", token_ids=[7, 8]), ResponseOptions())
    assert "output_ids" not in arrays(TextChunk("", DONE), ResponseOptions(output_ids=True))


def test_the_likeliest_tokens_are_a_row_of_each_token() -> None:
    said = [LogProb(-0.5, ((7, -0.5), (1, -1.0))), LogProb(-2.0, ((9, -0.25), (70000, -1.5)))]
    made = arrays(TextChunk("a", log_probs=said, token_ids=[7, 8]), ResponseOptions())
    values, tokens = made["output_top_log_probs"], made["output_top_ids"]

    assert (values.tolist(), values.dtype) == ([[[-0.5, -1.0], [-0.25, -1.5]]], np.dtype("float32"))
    assert (tokens.tolist(), tokens.dtype) == ([[[7, 1], [9, 70000]]], np.dtype("int32"))


def test_the_last_says_which_options_turned_speculation_off() -> None:
    done = replace(DONE, undrafted_for=("presence_penalty", "frequency_penalty"))

    said = arrays(TextChunk("a", done), ResponseOptions())["speculation"][0, 0]
    assert said == b"off: presence_penalty, frequency_penalty"


def test_a_histogram_reaches_to_the_longest_draft_that_there_might_have_been() -> None:
    done = replace(DONE, speculation=SpeculationCounts(3, 5, 1, [1]), max_draft_len=3)

    made = arrays(TextChunk("", done), EVERYTHING)["acceptance_histogram"]
    assert made.tolist() == [[2, 1, 0, 0]]


@pytest.mark.parametrize(("reason", "said"), [("END_ID", b"stop"), ("STOP", b"stop"), ("LENGTH", b"length")])
def test_the_last_says_why_the_text_ended(reason: str, said: bytes) -> None:
    done = Completion(EndReason[reason], 5, 9, SpeculationCounts())

    assert arrays(TextChunk("a", done), ResponseOptions())["finish_reason"][0, 0] == said
