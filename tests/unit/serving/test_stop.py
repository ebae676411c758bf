from __future__ import annotations

import random

import pytest

from trtspec.serving.stop import StopMatcher


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
