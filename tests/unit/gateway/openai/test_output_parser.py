"""Reasoning, content and calls in answers as the families write them, however they are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tests.unit.gateway.openai.recordings import CALL, QWEN, RECORDINGS
from tests.unit.gateway.openai.test_tool_parser import SCHEMAS, cut
from trtspec.gateway.openai.job import NO_PARSER, choose_parsing
from trtspec.gateway.openai.parsed_text import OutputParser, ParsedText
from trtspec.serving.tokenizer import Tokenizer

PLACES = st.lists(st.integers(0, 500), max_size=12)


def made(template: str, parser: str | None = None, prompt: str = "", *, tools: bool = True) -> OutputParser:
    how = choose_parsing(template, parser, prompt, SCHEMAS if tools else None, None)
    assert how
    return how.parser()


def read(reader: OutputParser, pieces: list[str]) -> tuple[str, str, list[tuple[str, Any]]]:
    found = ParsedText()
    for piece in pieces:
        found = found.followed_by(reader.push(piece))
    found = found.followed_by(reader.flush())
    return found.reasoning, found.content, [(call.name, json.loads(call.arguments)) for call in found.calls]


@pytest.mark.parametrize(("template", "parser", "prompt", "said", "expected"), RECORDINGS)
@settings(deadline=None)
@given(places=PLACES)
def test_an_answer_is_the_same_however_it_is_cut(
    template: str, parser: str | None, prompt: str, said: str, expected: object, places: list[int]
) -> None:
    for pieces in ([said], list(said), cut(said, places)):
        assert read(made(template, parser, prompt), pieces) == expected


PARTS = ["<think>", "</think>", "Here is my response:", "Here", "\n ", "text", CALL]


@settings(deadline=None)
@given(
    st.sampled_from(["qwen3", "deepseek_r1", "granite"]),
    st.lists(st.sampled_from(PARTS), max_size=12),
    PLACES,
)
def test_nothing_depends_on_the_pieces(parser: str, parts: list[str], places: list[int]) -> None:
    said = "".join(parts)
    whole, *others = (read(made(QWEN, parser), pieces) for pieces in ([said], list(said), cut(said, places)))
    assert others == [whole, whole]


@settings(deadline=None)
@given(st.text(max_size=60).filter(lambda text: "<" not in text), PLACES)
def test_text_without_marks_is_content(text: str, places: list[int]) -> None:
    for parser in ("qwen3", "granite"):
        assert read(made("", parser, tools=False), cut(text, places)) == ("", text, [])


def test_reasoning_is_told_as_it_comes() -> None:
    reader = made(QWEN)
    pieces = ["<thi", "nk>Two", " and", " </", "b> </thi", "nk>Four"]
    told = [reader.push(piece) for piece in pieces]
    assert [one.reasoning for one in told] == ["", "Two", " and", " ", "</b> ", ""]
    assert told[-1].content == "Four"


def test_a_template_without_marks_and_no_parser_leave_an_answer_as_it_is() -> None:
    assert choose_parsing("{{ messages }}", None, "", None, None) is None
    assert choose_parsing(QWEN, NO_PARSER, "", None, None) is None


@pytest.fixture(scope="module")
def words() -> tokenizers.Tokenizer:
    """A tokenizer of whole words, some of them special."""
    vocab = {word: number for number, word in enumerate(["a", "b", "Ġ", "?"])}
    inner = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    inner.add_special_tokens([AddedToken("<|tool_call_begin|>", special=True)])
    return inner


@pytest.mark.parametrize(
    ("prompt", "said", "number"),
    [
        ("", "<think>a?</think>a", 2),
        ("", " <think>a?", 2),
        ("", "a?<think>a</think>", 0),
        ("<think>", "a?</think>a?<think>a", 2),
        ("<think>", "<think>a?</think>", 2),
        ("<think></think>", "a?", 0),
    ],
)
def test_the_tokens_of_the_reasoning_are_counted(
    words: tokenizers.Tokenizer, prompt: str, said: str, number: int
) -> None:
    how = choose_parsing(QWEN, None, prompt, None, Tokenizer(words))
    assert how
    assert how.counter
    counter = how.counter()
    for token_id in words.encode(said).ids:
        counter.push([token_id])
    assert counter.number == number


def test_marks_that_are_no_tokens_leave_the_tokens_uncounted(words: tokenizers.Tokenizer) -> None:
    how = choose_parsing("", "granite", "", None, Tokenizer(words))
    assert how
    assert how.counter is None


def test_marks_that_are_special_tokens_are_asked_for(words: tokenizers.Tokenizer) -> None:
    def needs(template: str) -> bool:
        how = choose_parsing(template, None, "", SCHEMAS, Tokenizer(words))
        assert how
        return how.needs_special_tokens

    assert [needs(QWEN), needs("<|tool_call_begin|>")] == [False, True]
