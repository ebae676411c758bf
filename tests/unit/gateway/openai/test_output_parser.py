"""Reasoning, content and calls in answers as the families write them, however they are cut into pieces."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import tokenizers
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import ValidationError, validate
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tests.unit.gateway.openai.recordings import CALL, DEEPSEEK, DEEPSEEK_31, GLM, KIMI, QWEN, RECORDINGS
from trtspec.gateway.openai.output_parser import (
    NO_PARSER,
    BareCalls,
    NamedCallArguments,
    OutputParser,
    ParsedText,
    RequiredCalls,
    TaggedCalls,
    call_form,
    calls_in_json,
    calls_schema,
    choose_parsing,
)
from trtspec.serving.tokenizer import Tokenizer

ONE = '{"name": "add", "arguments": {"a": 1, "b": "é"}}'
QWEN_CALLS = f"Let me see.\n<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{ONE}\n</tool_call>"
NAMES = {"add", "now"}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "required": ["a"]}}},
    {"type": "function", "function": {"name": "now"}},
]


SCHEMAS: dict[str, Any] = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in TOOLS}


def reader(template: str) -> OutputParser:
    form = call_form(template)
    return TaggedCalls(form, SCHEMAS) if form else BareCalls(NAMES)


def read_calls(calls: OutputParser, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    found = [*map(calls.push, pieces), calls.flush()]
    content = "".join(one.content for one in found)
    return content, [(call.name, call.arguments) for one in found for call in one.calls]


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(edges)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 500), max_size=12))
def test_calls_between_tags_are_found_wherever_the_text_is_cut(places: list[int]) -> None:
    content, calls = read_calls(reader("… <tool_call> …"), cut(QWEN_CALLS, places))

    assert content == "Let me see.\n"
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [("add", {"a": 1, "b": "é"})] * 2


@pytest.mark.parametrize("said", [DEEPSEEK, DEEPSEEK_31, KIMI, GLM])
@settings(deadline=None)
@given(places=st.lists(st.integers(0, 500), max_size=12))
def test_calls_of_other_families_are_found_wherever_the_text_is_cut(said: str, places: list[int]) -> None:
    for pieces in ([said], list(said), cut(said, places)):
        content, calls = read_calls(reader(said), pieces)
        assert content == "I look.\n"
        assert [(name, json.loads(arguments)) for name, arguments in calls] == [
            ("add", {"a": 1, "b": "é"}),
            ("now", {}),
        ]


def test_kimis_calls_have_ids_as_its_template_wants_them_back() -> None:
    assert [call.id for call in reader(KIMI).push(KIMI).calls] == ["functions.add:0", "functions.now:1"]


def test_glms_values_are_what_the_schema_says() -> None:
    properties = {"a": {"type": "string"}, "b": {"type": "array"}}
    form = call_form(GLM)
    assert form
    arguments = "".join(
        f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"
        for key, value in (("a", "12"), ("b", "[1, 2]"), ("c", "no json"))
    )
    # GLM-4.7 writes it without lines.
    said = f"<tool_call>add{arguments}</tool_call>"
    (call,) = TaggedCalls(form, {"add": {"properties": properties}}).push(said).calls
    assert json.loads(call.arguments) == {"a": "12", "b": [1, 2], "c": "no json"}


@pytest.mark.parametrize(
    "text",
    [
        "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>add<｜tool▁call▁end｜> b",
        "<|tool_call_begin|>add<|tool_call_end|>",
        "<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{",
        "<tool_call>no name</tool_call> <arg_key>",
    ],
)
def test_malformed_tool_calls_of_other_families_are_returned_as_content(text: str) -> None:
    assert read_calls(reader(text), list(text)) == (text, [])


ONE_CALL = f"<tool_call>{ONE}</tool_call>"
CALL_PARTS = (
    ONE_CALL,
    "<tool_call>",
    "</tool_call>",
    ONE,
    "\n",
    " \t",
    "text",
    "<",
    "tool_call>",
    '{"name": 3}',
)


@settings(deadline=None)
@given(st.lists(st.integers(0, 500), max_size=30), st.lists(st.sampled_from(CALL_PARTS), max_size=20))
def test_however_an_answer_is_cut_it_is_the_same(places: list[int], parts: list[str]) -> None:
    text = "".join(parts)
    pieces = ([text], list(text), cut(text, places))
    whole, *others = (read_calls(reader("<tool_call>"), each) for each in pieces)
    assert others == [whole, whole]


@pytest.mark.parametrize(
    ("behind", "content"),
    [
        ("\n", ""),
        ("\n\nI did.\n\nNow", "\n\nI did.\n\nNow"),
        (f"\n{ONE_CALL}\nI did.\n ", "\nI did.\n "),
        ("\n<tool_call>3</tool_call>\n", "\n<tool_call>3</tool_call>\n"),
        ("\n<tool", "\n<tool"),
    ],
)
def test_blanks_behind_a_call_are_shown_before_text_alone(behind: str, content: str) -> None:
    assert read_calls(reader("<tool_call>"), list(ONE_CALL + behind))[0] == content


@settings(deadline=None)
@given(st.lists(st.integers(0, 500), max_size=12), st.text(max_size=60))
def test_an_answer_without_calls_is_shown_as_it_is(places: list[int], text: str) -> None:
    for calls in (reader("<tool_call>"), reader("")):
        assert read_calls(calls, cut(text, places)) == (text, []) or text.lstrip()[:1] in ("[", "{")


@pytest.mark.parametrize(
    "text",
    ["<tool_call>not json</tool_call> b", '<tool_call>{"name": 3}</tool_call>', "<tool_call>{", "a <tool"],
)
def test_malformed_tool_calls_between_tags_are_returned_as_content(text: str) -> None:
    assert read_calls(reader("<tool_call>"), list(text)) == (text, [])


def test_a_whole_call_counts_even_where_its_end_was_cut() -> None:
    assert read_calls(reader("<tool_call>"), ["<tool_call>" + ONE])[1][0][0] == "add"


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "add", "parameters": {"a": 1}}',
        '[{"name": "add", "arguments": {"a": 1}}]',
        '\n {"name": "add", "arguments": "{\\"a\\": 1}"}',
    ],
)
def test_answers_that_are_nothing_but_calls(text: str) -> None:
    content, [(name, arguments)] = read_calls(BareCalls(NAMES), list(text))
    assert (content, name, json.loads(arguments)) == ("", "add", {"a": 1})


@pytest.mark.parametrize(
    "text",
    ['{"a": 1}', "[1, 2]", "{", '["name"]', '{"name": "Alice", "age": 3}', f'[{ONE}, {{"name": "Bob"}}]'],
)
def test_json_that_is_no_call_is_content(text: str) -> None:
    assert read_calls(BareCalls(NAMES), list(text)) == (text, [])


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_arguments_that_json_cannot_hold_are_no_call(number: str) -> None:
    """Python's reader takes them, and its writer would put NaN or Infinity into the arguments."""
    text = f'{{"name": "add", "arguments": {{"a": {number}}}}}'
    assert calls_in_json(text) == []
    assert calls_in_json(text.replace(number, "1e9"))[0].arguments == '{"a": 1000000000.0}'


def test_forced_calls() -> None:
    assert read_calls(RequiredCalls(), [f"[{ONE[:9]}", f"{ONE[9:]}]"])[1][0][0] == "add"


def test_the_arguments_of_a_named_function_are_told_as_they_come() -> None:
    calls = NamedCallArguments("now")
    first, second, last = calls.push('{"a'), calls.push('": 1}'), calls.flush()
    (call,) = first.calls
    assert (call.name, call.arguments, second.more) == ("now", '{"a', '": 1}')
    assert (first.more, second.calls, last) == ("", [], ParsedText())


def is_of(schema: dict[str, Any]) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        try:
            validate(value, schema)
        except ValidationError:
            return False
        return True

    return check


def test_the_schema_of_forced_calls_admits_calls_of_the_tools_alone() -> None:
    add, now = {"name": "add", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}
    several = is_of(calls_schema(TOOLS, None, several=True))
    assert several([add, now])
    assert not any(map(several, ([], [{"name": "other", "arguments": {}}], [{**add, "arguments": {}}], add)))
    assert not is_of(calls_schema(TOOLS, None, several=False))([add, now])
    assert is_of(calls_schema(TOOLS, "add", several=True))({"a": 1})


def nested(kind: str) -> dict[str, Any]:
    """Parameters as `openai.pydantic_function_tool` writes those of nested models, and a reference to all."""
    place = {"type": "object", "properties": {"at": {"type": kind}}, "required": ["at"]}
    properties = {"where": {"$ref": "#/$defs/Place"}, "then": {"$ref": "#"}, "$ref": {"const": "#/$defs"}}
    return {"type": "object", "properties": properties, "required": ["where"], "$defs": {"Place": place}}


def test_references_of_parameters_stay_their_own() -> None:
    kinds = {"text": "string", "number": "integer"}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": nested(kind)}}
        for name, kind in kinds.items()
    ]
    schema = calls_schema(tools, None, several=True)
    admits = is_of(schema)

    def call(name: str, *places: Any) -> list[Any]:
        first, then = ({"where": {"at": place}} for place in places)
        return [{"name": name, "arguments": {**first, "then": then}}]

    assert admits(call("text", "a", "b"))
    assert admits(call("number", 1, 2))
    assert not any(map(admits, (call("text", "a", 1), call("number", "a", 1), call("number", 1, "a"))))
    assert '"$ref": {"const": "#/$defs"}' in json.dumps(schema)


@pytest.mark.parametrize("name", [None, "go"])
def test_xgrammar_reads_references_of_parameters(name: str | None) -> None:
    tools = [{"type": "function", "function": {"name": "go", "parameters": nested("string")}}]
    xgrammar.Grammar.from_json_schema(json.dumps(calls_schema(tools, name, several=True)))


def test_ids_are_as_mistrals_templates_demand() -> None:
    first, second = reader("<tool_call>").push(QWEN_CALLS).calls
    assert first.id != second.id
    assert all(len(call.id) == 9 and call.id.isalnum() for call in (first, second))


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
