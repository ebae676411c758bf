"""Lookups in a text, held against a search that reads all of it every time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.serving.drafters import lookup
from trtspec.serving.drafters.lookup import (
    LONGEST_PAUSE,
    MOST_MATCHES,
    MOST_READ,
    SHORTEST_PAUSE,
    LookupDrafter,
    LookupSource,
    SequenceIndex,
)
from trtspec.serving.drafters.source import Offer
from trtspec.serving.executor import Request
from trtspec.serving.text import Text


def searched(text: Sequence[int], least: int, most: int, places: int = MOST_MATCHES) -> int:
    """The place behind the longest ending that stood before, of the latest `places` of its last tokens.

    An ending has `least` to `most` tokens; of several places the latest counts.
    """
    ending = list(text[-least:])
    ends = [end for end in range(least, len(text)) if list(text[end - least : end]) == ending]
    best, longest = 0, least - 1
    for end in ends[: -places - 1 : -1]:
        length = least
        while length < min(most, end) and text[end - length - 1] == text[-length - 1]:
            length += 1
        if length > longest:
            best, longest = end, length
    return best


def proposed(drafter: LookupDrafter, text: Text, count: int) -> list[int]:
    request = Request(text, count)
    return asyncio.run(drafter.propose(request, math.inf))


def drafter_of(tokens: Sequence[int], least: int = 2, most: int = 8) -> tuple[LookupDrafter, Text]:
    text = Text(tokens)
    return LookupSource(least, most).drafter(text), text


@given(
    start=st.lists(st.integers(0, 2), max_size=40),
    pieces=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=8),
    least=st.integers(1, 4),
    more=st.integers(0, 6),
    places=st.sampled_from([1, 2, 3, MOST_MATCHES]),
)
@settings(deadline=None, max_examples=300)
def test_a_text_that_grows_is_searched_as_a_whole(
    start: list[int], pieces: list[list[int]], least: int, more: int, places: int
) -> None:
    """Few kinds of tokens, so that endings of every length stand in many places."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "MOST_MATCHES", places)
        text = Text(start)
        index = SequenceIndex(text, least)
        for piece in [[], *pieces]:
            text.extend(piece)
            assert index.find(least + more)[0] == searched(text, least, least + more, places), list(text)


@given(tokens=st.lists(st.integers(0, 3), min_size=3, max_size=60), count=st.integers(1, 64))
@settings(deadline=None)
def test_a_lookup_continues_with_what_followed_before_and_repeats_its_period(
    tokens: list[int], count: int
) -> None:
    index = SequenceIndex(Text(tokens), 1)
    place = index.find(8)[0]
    if not place:
        return
    period = len(tokens) - place
    expected = [tokens[place + number % period] for number in range(count)]
    assert index.following(place, count) == expected


class TestPlaces:
    def test_the_longest_ending_counts_before_the_latest(self) -> None:
        #                    1 2 3 4 stands before 9, and 3 4 alone, later, before 8
        text = Text([1, 2, 3, 4, 9, 7, 3, 4, 8, 1, 2, 3, 4])
        assert SequenceIndex(text, 2).find(8)[0] == 4
        assert SequenceIndex(text, 2).find(2)[0] == 8

    def test_a_lookup_takes_the_latest_of_equally_long_matches(self) -> None:
        assert SequenceIndex(Text([1, 2, 5, 1, 2, 6, 1, 2]), 2).find(8)[0] == 5

    @pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 1]])
    def test_a_lookup_finds_no_place_for_an_ending_that_is_new(self, tokens: list[int]) -> None:
        assert SequenceIndex(Text(tokens), 2).find(8)[0] == 0

    def test_the_end_of_the_text_is_no_place_of_itself(self) -> None:
        text = Text([1, 2])
        index = SequenceIndex(text, 2)
        assert index.find(8)[0] == index.find(8)[0] == 0
        text.extend([1, 2])
        assert index.find(8)[0] == 2


class TestPeriods:
    @pytest.mark.parametrize("period", [1, 2, 3, 7])
    @pytest.mark.parametrize("count", [1, 5, 64])
    def test_a_lookup_drafts_the_next_periods_of_a_repeating_text(self, period: int, count: int) -> None:
        drafter, text = drafter_of([number % period for number in range(30)])
        assert drafter.offer()
        assert proposed(drafter, text, count) == [(30 + number) % period for number in range(count)]


class TestLongTexts:
    def test_a_long_text_is_read_piece_by_piece(self) -> None:
        """An ending that stood only in what is not read yet is found once it is."""
        length = 2 * MOST_READ + 500
        text = Text([*range(length), length - 300, length - 299])
        index = SequenceIndex(text, 2)
        assert [index.find(8)[0] for _ in range(4)] == [0, 0, length - 298, length - 298]

    def test_the_catch_up_ends_while_the_text_grows(self) -> None:
        text = Text(range(3 * MOST_READ))
        index = SequenceIndex(text, 2)
        for number in range(4):
            text.extend([10**6 + number, 5, 6])
            found = index.find(8)[0]
        assert found == searched(text, 2, 8)

    def test_only_the_latest_places_are_compared(self) -> None:
        """A round costs no more where the last tokens stand everywhere; the longer ending is too far back."""
        drafter, text = drafter_of([7, 8, 1, 2, *[9, 1, 2] * MOST_MATCHES, 7, 8, 1, 2])
        assert drafter.offer()
        assert proposed(drafter, text, 2) == [7, 8]
        assert SequenceIndex(text, 2).find(4)[0] == searched(text, 2, 4) != searched(text, 2, 4, 10**6)


class TestOffers:
    def test_nothing_found_is_no_offer(self) -> None:
        drafter, text = drafter_of([1, 2, 3, 4])
        assert drafter.offer() is None
        text.extend([1, 2])
        assert drafter.offer() == Offer("lookup", 6)
        assert proposed(drafter, text, 3) == [3, 4, 1]

    def test_the_ending_has_as_many_tokens_as_the_least(self) -> None:
        assert drafter_of([1, 2, 3, 9, 2, 3], least=3)[0].offer() is None
        assert drafter_of([1, 2, 3, 9, 1, 2, 3], least=3)[0].offer() is not None

    def test_texts_know_nothing_of_each_other(self) -> None:
        source = LookupSource(2, 8)
        one, other = Text([1, 2, 3, 1, 2]), Text([4, 5, 1, 2])
        assert source.drafter(one).offer() is not None
        assert source.drafter(other).offer() is None

    def test_the_longer_the_text_is_new_the_later_is_the_next_look(self) -> None:
        drafter, text = drafter_of([1, 2, 3, 4])
        pauses = []
        for _ in range(12):
            assert drafter.offer() is None
            pauses.append(drafter.pause)
            text.extend(range(text.largest + 1, text.largest + 1 + drafter.pause))
        assert pauses[0] == SHORTEST_PAUSE
        assert pauses == sorted(pauses)
        assert pauses[-1] == LONGEST_PAUSE
        text.extend([1, 2])
        assert drafter.offer()
        text.append(10**6)
        assert drafter.offer() is None
        assert drafter.pause == SHORTEST_PAUSE
