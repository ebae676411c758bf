"""Whom it concerns that a text cannot be followed: its own request, or all of its guide."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest

from tests.e2e.conftest import TINY
from tests.fakes.guided import VOCABULARY
from trtspec.serving.executor import GUIDE_REFUSED, Guide, GuideType, Request
from trtspec.serving.executors.torch import follower
from trtspec.serving.executors.torch.follower import GUIDES_BUSY, Followers, GuidedText
from trtspec.serving.guides.compiler import TOO_AMBIGUOUS, Bitmasks, Grammar, GuideCompiler, Matcher
from trtspec.serving.text import Text
from trtspec.serving.tokenizer import Tokenizer

LETTERS = Guide(GuideType.REGEX, "[a-c]{9}")
SIZE = len(VOCABULARY)


@pytest.fixture
def followers() -> Iterator[Followers]:
    made = Followers(8)
    yield made
    made.close()


@pytest.fixture
def grammar() -> Grammar:
    return GuideCompiler(VOCABULARY).compile(LETTERS)


def begun(followers: Followers, grammar: Grammar) -> GuidedText:
    text = Text([5])
    guided = GuidedText(Request(text, 8, guide=LETTERS), grammar, text, 1)
    followers.begin(guided, [], SIZE, 0)
    return guided


def test_a_token_that_the_grammar_forbids_ends_that_request_alone(
    followers: Followers, grammar: Grammar
) -> None:
    wrong = begun(followers, grammar)
    wrong.said = [VOCABULARY.index(b"z")]
    followers.mask(wrong, [], SIZE, 0)
    assert (wrong.masks, wrong.error) == (None, "The guide forbids token 0 of what was generated before")
    assert grammar.problem is None

    other = begun(followers, grammar)
    followers.mask(other, [], SIZE, 0)
    assert other.error is None
    assert other.masks is not None


def test_a_grammar_that_is_too_ambiguous_ends_all_requests_with_it(
    followers: Followers, grammar: Grammar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "MAX_MASK_S", -1.0)
    guided = begun(followers, grammar)
    followers.mask(guided, [], SIZE, 0)
    assert (guided.error, grammar.problem) == (f"{GUIDE_REFUSED}{TOO_AMBIGUOUS}", TOO_AMBIGUOUS)
    assert begun(followers, grammar).error == guided.error


def test_a_mask_that_takes_seconds_is_not_waited_for(
    followers: Followers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """xgrammar works on it without Python's lock."""
    is_made, fill = Event(), Matcher.fill

    def noted(matcher: Matcher, bitmasks: Bitmasks, row: int) -> None:
        fill(matcher, bitmasks, row)
        is_made.set()

    vocabulary = Tokenizer.load(TINY / "target").vocabulary(2048)
    ambiguous = "x" + 5 * "(" + "[^a]{0,49}" + 5 * "){0,49}"
    grammar = GuideCompiler(vocabulary).compile(Guide(GuideType.REGEX, ambiguous))
    guided = begun(followers, grammar)
    guided.said = [vocabulary.index(b"x")]
    monkeypatch.setattr(Matcher, "fill", noted)

    followers.mask(guided, [], len(vocabulary), 0)

    assert grammar.problem == TOO_AMBIGUOUS
    assert not is_made.is_set()


def test_a_guide_that_is_not_looked_at_for_others_is_not_refused(
    followers: Followers, grammar: Grammar, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, fill = Event(), Matcher.fill

    def endless(matcher: Matcher, bitmasks: Bitmasks, row: int) -> None:
        while not may_end.is_set():
            pass
        fill(matcher, bitmasks, row)

    hostile = [GuideCompiler(VOCABULARY).compile(LETTERS) for _ in range(2)]
    monkeypatch.setattr(Matcher, "fill", endless)
    try:
        for slow in hostile:
            followers.mask(begun(followers, slow), [], SIZE, 0)
            assert slow.problem == TOO_AMBIGUOUS
        assert begun(followers, grammar).error == GUIDES_BUSY
        assert grammar.problem is None
    finally:
        may_end.set()
