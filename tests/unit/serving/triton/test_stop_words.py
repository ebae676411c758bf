"""Lists of words as NVIDIA's preprocessing makes them, and the end of a text at one."""

from __future__ import annotations

import numpy as np
import pytest

from trtspec.serving.errors import RequestError
from trtspec.serving.triton.engine_requests import StopWords, read_words


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[], []], []),
        ([[5], [1]], [[5]]),
        ([[5, 6, 7], [1, 3, -1]], [[5], [6, 7]]),
        ([[5, 6, 0], [2, -1, -1]], [[5, 6]]),
    ],
)
def test_a_list_is_read(rows: list[list[int]], words: list[list[int]]) -> None:
    assert read_words(np.array([rows], np.int32).reshape(1, 2, -1), "stop_words_list") == words


def test_no_list_is_no_words() -> None:
    assert read_words(None, "stop_words_list") == []


@pytest.mark.parametrize("ends", [[2, 1, -1], [4, -1, -1], [0, 1, -1], [1, 1, 2]])
def test_offsets_that_make_no_sense_are_refused(ends: list[int]) -> None:
    with pytest.raises(RequestError, match="stop_words_list"):
        read_words(np.array([[[5, 6, 7], ends]], np.int32), "stop_words_list")


def test_the_word_stays_in_the_text_and_nothing_after_it() -> None:
    words = StopWords([[3, 4], [9]])

    assert (words.take([1, 3]), words.found) == ([1, 3], False)
    assert (words.take([4, 5]), words.found) == ([4], True)
    assert words.take([6]) == []


def test_without_words_all_is_taken() -> None:
    assert StopWords([]).take([1, 2, 3]) == [1, 2, 3]
