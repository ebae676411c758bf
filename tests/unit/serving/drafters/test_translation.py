from __future__ import annotations

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import vocabularies
from trtspec.serving.drafters.translation import MOST_OPEN, Dictionary, Translation
from trtspec.serving.text import Text
from trtspec.serving.tokenizer import Tokenizer

WORDS = [(71, 68), (75, 75), (256, 257), (258, 78), (220, 86), (220, 71)]


def dictionary(target: tokenizers.Tokenizer, draft: tokenizers.Tokenizer) -> Dictionary:
    ours, theirs = Tokenizer(target), Tokenizer(draft)
    return Dictionary(ours, theirs, ours.size, theirs.size)


def bytes_of(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    return b"".join(map(tokenizer.bytes_of, ids))


def whole(text: bytes) -> bytes:
    """The text without the beginning of a character at its end."""
    for end in range(len(text), max(len(text) - 4, -1), -1):
        try:
            text[:end].decode()
        except UnicodeDecodeError:
            continue
        return text[:end]
    raise AssertionError(text)


def in_pieces(words: Dictionary, ids: Sequence[int], cuts: Sequence[int]) -> Translation:
    text = Text(())
    translation = Translation(words, text)
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        text.extend(ids[begin:end])
        translation.read()
    return translation


@settings(max_examples=30, deadline=None)
@given(vocabularies.vocabularies, vocabularies.vocabularies)
def test_a_counterpart_has_the_same_bytes_or_is_nothing_of_the_targets(
    target: tokenizers.Tokenizer, draft: tokenizers.Tokenizer
) -> None:
    words = dictionary(target, draft)
    for token_id, found in enumerate(words.counterparts()):
        own = words.draft.bytes_of(token_id)
        if found < words.target.size:
            assert words.target.bytes_of(found) == own
        else:
            assert not own or own not in words.target.vocabulary(words.target.size)


@settings(max_examples=30, deadline=None)
@given(vocabularies.vocabularies, vocabularies.vocabularies, vocabularies.texts, st.data())
def test_the_draft_reads_the_same_text(
    target: tokenizers.Tokenizer, draft: tokenizers.Tokenizer, text: str, data: st.DataObject
) -> None:
    words = dictionary(target, draft)
    ids = words.target.encode(text, add_special_tokens=False)
    said = bytes_of(words.target, ids)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    translation = in_pieces(words, ids, cuts)
    assert bytes_of(words.draft, translation.text) == said
    assert bytes_of(words.draft, in_pieces(words, ids[: cuts[0]] if cuts else ids, []).text) == whole(
        bytes_of(words.target, ids[: cuts[0]] if cuts else ids)
    )
    if len(said) <= MOST_OPEN and "<|" not in text and "</s>" not in text:
        assert translation.text == words.to_draft(said.decode())


@settings(max_examples=30, deadline=None)
@given(vocabularies.vocabularies, vocabularies.vocabularies, vocabularies.texts, st.data())
def test_a_proposal_says_what_the_draft_said(
    target: tokenizers.Tokenizer, draft: tokenizers.Tokenizer, text: str, data: st.DataObject
) -> None:
    words = dictionary(target, draft)
    ids = words.target.encode(text, add_special_tokens=False)
    end = data.draw(st.integers(0, len(ids)))
    translation = in_pieces(words, ids[:end], [])
    said = data.draw(st.lists(st.integers(0, words.draft.size - 1), max_size=8))
    found = translation.translated(said)
    assert max(found, default=0) < words.target.size
    before = bytes_of(words.target, ids[:end])
    heard = before[len(whole(before)) :] + bytes_of(words.target, found)
    assert (bytes_of(words.draft, said) + b"\0").startswith(heard) or not found


@settings(max_examples=30, deadline=None)
@given(vocabularies.byte_levels, vocabularies.byte_levels, vocabularies.texts, st.data())
def test_what_the_target_would_say_is_proposed_in_its_own_tokens(
    target: tokenizers.Tokenizer, draft: tokenizers.Tokenizer, text: str, data: st.DataObject
) -> None:
    """Up to a last token of which the draft may not have said all."""
    words = dictionary(target, draft)
    ids = words.target.encode(text, add_special_tokens=False)
    end = data.draw(st.integers(0, len(ids)))
    translation = in_pieces(words, ids[:end], [])
    rest = words.to_draft(text)[len(translation.text) :]
    if bytes_of(words.draft, translation.text) + bytes_of(words.draft, rest) != text.encode():
        return  # The draft has joined what the target has not said yet to what it has.
    if "<|" not in text:
        assert translation.translated(rest) == ids[end:]


def test_a_word_is_cut_anew_when_it_goes_on() -> None:
    words = dictionary(vocabularies.byte_level([]), vocabularies.byte_level(WORDS))
    translation = in_pieces(words, words.target.encode("hell"), [])
    before = translation.text
    assert translation.text == words.draft.encode("hell")
    translation._source.extend(words.target.encode("o he"))
    translation.read()
    assert translation.text == words.draft.encode("hello he")
    assert before == words.draft.encode("hell")


def test_the_same_text_object_goes_on_where_nothing_is_cut_anew() -> None:
    words = dictionary(vocabularies.byte_level([]), vocabularies.byte_level(WORDS))
    translation = in_pieces(words, words.target.encode("hello"), [])
    before = translation.text
    translation._source.extend(words.target.encode(" world"))
    translation.read()
    assert translation.text is before


def test_a_long_text_is_cut_as_the_tokenizer_cuts_it() -> None:
    words = dictionary(vocabularies.byte_level(WORDS[:2]), vocabularies.byte_level(WORDS))
    text = "hello world, hell of a whale; she helped him well. " * 40
    ids = words.target.encode(text)
    translation = in_pieces(words, ids, range(7, len(ids), 7))
    assert translation.text == words.draft.encode(text)
    assert len(translation._open) <= MOST_OPEN


def test_shuffled_ids_are_translated_token_by_token() -> None:
    """Even where the target has cut a word as its tokenizer would not."""
    inner = vocabularies.byte_level(WORDS)
    other, new = vocabularies.shuffled(inner)
    words = dictionary(inner, other)
    translation = in_pieces(words, [inner.token_to_id(letter) for letter in "hel"], [])
    said = [inner.token_to_id(letter) for letter in "lo!"]
    assert translation.translated([new[token_id] for token_id in said]) == said


def test_special_tokens() -> None:
    """One of the same name is the draft's own, others have no text; a proposal ends before one."""
    target, draft = vocabularies.byte_level([]), vocabularies.byte_level(WORDS, end="</s>")
    words = dictionary(target, draft)
    end, turn = map(target.token_to_id, ("<|end|>", "<|turn|>"))
    hello = words.target.encode("hello")
    translation = in_pieces(words, [*hello, turn, *hello, end, *hello], [])
    theirs = words.draft.encode("hello")
    again = words.draft.encode("hellohello")
    assert translation.text == [*theirs, draft.token_to_id("<|turn|>"), *again]
    assert translation.translated([*theirs, draft.token_to_id("</s>"), *theirs]) == hello


def test_the_drafts_beginning_comes_once() -> None:
    inner = vocabularies.sentence_piece(["hello"])
    inner.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    words = dictionary(inner, inner)
    ids = words.target.encode("hello")
    assert in_pieces(words, ids, []).text == ids
    plain = dictionary(vocabularies.byte_level([]), inner)
    assert in_pieces(plain, plain.target.encode(" hello"), []).text == ids


@pytest.mark.parametrize("character", ["é", "你", "😀"])
def test_a_character_that_is_cut_in_two(character: str) -> None:
    """The draft reads it once it is whole; what it says is proposed without the bytes that are there."""
    words = dictionary(vocabularies.byte_level([]), vocabularies.byte_level(WORDS))
    ids = words.target.encode(f"hello {character}!")
    for end in range(len("hello ") + 1, len(ids) - 1):
        translation = in_pieces(words, ids[:end], [])
        assert translation.text == words.draft.encode("hello ")
        assert translation.translated(words.draft.encode(f"{character}!")) == ids[end:]
        assert translation.translated(words.draft.encode("hello")) == []
