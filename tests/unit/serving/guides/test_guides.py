"""What is kept of guides, what is refused, and who waits for whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import pytest

from tests.fakes.guided import EBNF, GUIDES, VOCABULARY, guides
from tests.fakes.virtual_time import run_virtually
from trtspec.serving.errors import Busy, GuideError
from trtspec.serving.executor import Guide, GuideType
from trtspec.serving.guides import compiler
from trtspec.serving.guides import guides as module
from trtspec.serving.guides.compiler import Bitmasks, Grammar, GuideCompiler
from trtspec.serving.guides.guides import MAX_CHARACTERS, MAX_DEPTH, check

Run = Callable[[Any], Any]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The guides that were compiled, in order."""
    read, compile_ = list[str](), GuideCompiler.compile

    def compile(self: GuideCompiler, guide: Guide) -> Grammar:
        read.append(guide.guide)
        return compile_(self, guide)

    monkeypatch.setattr(GuideCompiler, "compile", compile)
    return read


def number(count: int) -> Guide:
    return Guide(GuideType.REGEX, f"[0-9]{{{count}}}")


def test_a_guide_is_read_once_however_many_want_it_and_whatever_ends_its_texts(
    run: Run, compiled: list[str]
) -> None:
    async def main() -> None:
        made = guides()
        wanted = [replace(number(3), end_ids=(end,)) for end in range(20)]
        first = asyncio.ensure_future(made.grammar(wanted[0]))
        found = await asyncio.gather(*map(made.grammar, wanted))
        assert set(map(id, found)) == {id(await first)}
        assert made.find(number(3)) is found[0]
        assert made.find(number(4)) is None

    run(main())
    assert compiled == [number(3).guide]


def test_who_leaves_does_not_take_the_grammar_from_the_others(run: Run, compiled: list[str]) -> None:
    async def main() -> None:
        made = guides()
        first, second = (asyncio.ensure_future(made.grammar(number(3))) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second is made.find(number(3))

    run(main())
    assert len(compiled) == 1


class OneThread:
    """A pool whose thread begins a call when it is told to; `is_beginning` once it does so this moment."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.is_beginning = False

    def submit(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def begin(self) -> Thread:
        thread = Thread(target=self.waiting.pop())
        thread.start()
        return thread

    def give_up(self, call: None) -> bool:
        return not self.is_beginning


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> OneThread:
    made = OneThread()
    monkeypatch.setattr(module, "ThreadPool", lambda size, name: made)
    return made


def test_a_guide_has_all_its_time_however_long_it_waited_for_a_thread(
    pool: OneThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_end, compile_ = Event(), Event(), GuideCompiler.compile

    def slow(self: GuideCompiler, guide: Guide) -> Grammar:
        has_begun.set()
        may_end.wait(120)
        return compile_(self, guide)

    async def main() -> None:
        made = guides()
        made._compiler = GuideCompiler(VOCABULARY)
        reading = asyncio.ensure_future(made.grammar(number(3)))
        await asyncio.sleep(0.9 * module.COMPILE_S)
        thread = pool.begin()
        assert has_begun.wait(120)
        await asyncio.sleep(0.9 * module.COMPILE_S)
        may_end.set()
        thread.join()
        assert await reading is made.find(number(3))

    monkeypatch.setattr(GuideCompiler, "compile", slow)
    run_virtually(main())


@pytest.mark.parametrize("is_beginning", [False, True], ids=["waits", "begins as it is given up"])
def test_a_guide_that_had_no_time_is_read_when_it_comes_again(pool: OneThread, is_beginning: bool) -> None:
    pool.is_beginning = is_beginning

    async def main() -> None:
        made = guides()
        made._compiler = GuideCompiler(VOCABULARY)
        with pytest.raises(Busy, match="other grammars"):
            await made.grammar(number(3))
        reading = asyncio.ensure_future(made.grammar(number(3)))
        await asyncio.sleep(1)
        pool.begin().join()
        assert await reading is made.find(number(3))

    run_virtually(main())


def test_memory_is_bounded_and_what_was_not_used_goes_first(
    run: Run, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        made = guides()
        sizes = [(await made.grammar(number(count))).size for count in (1, 2, 3)]
        monkeypatch.setattr(module, "MAX_BYTES", sum(sizes))
        made.find(number(1))
        await made.grammar(number(4))
        assert made.find(number(2)) is None
        assert made.find(number(1)) is not None
        monkeypatch.setattr(module, "MAX_BYTES", 1)
        await made.grammar(number(5))
        assert [count for count in range(1, 6) if made.find(number(count))] == [5]

    run(main())


def test_refusals_are_remembered_up_to_a_number(
    run: Run, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REFUSED", 2)

    async def main() -> None:
        made = guides()
        for expression in ("(1", "(2", "(2", "(3", "(1"):
            with pytest.raises(GuideError, match="parenthesis"):
                await made.grammar(Guide(GuideType.REGEX, expression))

    run(main())
    assert compiled == ["(1", "(2", "(3", "(1"]


def test_a_grammar_that_could_not_be_followed_is_refused_from_then_on(run: Run, compiled: list[str]) -> None:
    async def main() -> None:
        made = guides()
        grammar = await made.grammar(number(3))
        grammar.problem = "it takes too long"
        assert made.find(number(3)) is None
        for _ in range(2):
            with pytest.raises(GuideError, match="takes too long"):
                await made.grammar(number(3))

    run(main())
    assert len(compiled) == 1


def test_a_guide_whose_first_token_takes_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a large vocabulary, `[^a]{0,9999}` two thousand times takes seconds; nothing takes no time."""
    monkeypatch.setattr(compiler, "MAX_MASK_S", -1.0)
    with pytest.raises(GuideError, match="ambiguous"):
        GuideCompiler(VOCABULARY).compile(GUIDES["json"])


@pytest.mark.parametrize("name", GUIDES)
def test_bits_are_what_the_matcher_accepts(name: str) -> None:
    """Of every token, along a text that takes the first one allowed each time."""
    size = len(VOCABULARY)
    matcher = GuideCompiler(VOCABULARY).compile(GUIDES[name]).matcher()
    for _ in range(12):
        bitmasks = Bitmasks(2, size)
        matcher.fill(bitmasks, 1)
        row = bitmasks.unpacked(2)[1]
        texts = [token for token in range(size) if VOCABULARY[token]]
        for token in texts:
            accepted = matcher.accept(token)
            matcher.back(int(accepted))
            assert accepted == row[token] == bitmasks.allows(1, token)
        assert not any(row[token] for token in range(size) if not VOCABULARY[token])
        allowed = [token for token in texts if row[token]]
        assert allowed or bitmasks.ends(1)
        if not allowed:
            return
        assert matcher.accept(allowed[0])


def test_a_model_that_writes_blanks_alone_has_to_go_on() -> None:
    """Between the parts of a schema's JSON; a string may have as many as it likes."""
    schema = Guide(GuideType.JSON_SCHEMA, '{"type": "object", "properties": {"a": {"type": "string"}}}')
    matcher = GuideCompiler(VOCABULARY).compile(schema).matcher()

    def blanks() -> int:
        count = 0
        while count < 2 * compiler.MOST_BLANKS and matcher.accept(VOCABULARY.index(b" ")):
            count += 1
        return count

    for byte in b"{":
        assert matcher.accept(VOCABULARY.index(bytes([byte])))
    assert blanks() == compiler.MOST_BLANKS
    for byte in b'"a":"':
        assert matcher.accept(VOCABULARY.index(bytes([byte])))
    assert blanks() == 2 * compiler.MOST_BLANKS


NOTHING: dict[str, list[Any]] = {
    "json_schema": [
        {"anyOf": []},
        {"oneOf": []},
        {"allOf": []},
        {"enum": []},
        {"type": []},
        False,
        {"properties": {"a": {"anyOf": []}}, "required": ["a"]},
        {"type": "array", "items": {"anyOf": []}, "minItems": 1},
        {"properties": {"a": False}, "required": ["a"]},
        {"type": "array", "prefixItems": [False]},
        {"required": ["a"], "additionalProperties": False},
        {"properties": {"b": {}}, "required": ["a"]},
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"type": "string", "minLength": 5, "maxLength": 2},
        {"type": "integer", "minimum": 5, "maximum": 2},
        {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 6},
        {"type": "array", "minItems": 3, "maxItems": 1},
        {"type": "object", "minProperties": 3, "maxProperties": 1},
        {"const": 1, "enum": [2]},
        {"type": "string", "const": 1},
        {"type": "integer", "enum": [True]},
        {"type": "integer", "const": 1.5},
        {"type": "string", "pattern": "a(?!)"},
        {"type": "string", "pattern": r"a[^\s\S]"},
        {"patternProperties": {r"[^\x00-\x{10FFFF}]": {}}},
    ],
    "regex": [
        *(r"[^\x00-\x{10FFFF}]", r"a[^\x00-\x{10FFFF}]", r"[^\s\S]", r"a[^\d\D]", r"(a|b)*[^\S\s]"),
        *(r"a[^\]\u0000-\U0010FFFF]", "[b-a]", "a{3,1}", "$^", "a^", "a^b", "a$b", "a(?=b)", "(?!a)a", "[]"),
    ],
    "ebnf_grammar": [
        *(
            "root ::= root",
            'root ::= "a" root',
            'root ::= "a" dead\ndead ::= dead',
            "root ::= a\na ::= b\nb ::= a",
        ),
        *(r'root ::= "a" [^\x00-\U0010FFFF]', 'root ::= "a" one{2,3}\none ::= "b" one', 'a ::= "a"'),
    ],
    "structural_tag": [
        {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"anyOf": []}}},
        {"type": "structural_tag", "format": {"type": "regex", "pattern": r"[^\x{0}-\x{10FFFF}]"}},
        {"type": "structural_tag", "format": {"type": "grammar", "grammar": 'root ::= "a" root'}},
    ],
}
SOMETHING: dict[str, list[Any]] = {
    "json_schema": [
        {"type": "integer", "enum": [1, 2.0]},
        {"type": ["string", "null"], "enum": ["a", None]},
        {"type": "number", "const": 1},
        {"const": 1, "enum": [1, 2]},
        {"enum": [[], {}, "x", True, None]},
        {"properties": {"a": {"type": "null"}, "b": {"$ref": "#"}}, "required": ["a"]},
        {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]},
        {"type": "string", "pattern": r"^[^\x00-\x1f]+$"},
    ],
    "regex": [
        *(
            "^a$|^b$",
            "(^a|b$)",
            "(?:^a)b",
            r"(\^\$)?a",
            "[$^]?a",
            r"[^a]\u{41}\x41\n\/\-\.",
            "(?<name>a)b?",
            "a{0}",
        ),
        *(r"[^\x00-\xff]|a", r"([^\s\S]|a)b", r"[^\s\S]*b", r"[^\s\S]?b"),
    ],
    "ebnf_grammar": [
        *(
            'root ::= "a" | dead\ndead ::= "b" dead',
            'root ::= "a" dead{0,2}\ndead ::= "b" dead',
            'root ::= ""',
        ),
        *('root ::= "a" dead? "c"\ndead ::= "b" dead', 'root ::= "a" | "(= | [^\\" x" [|\\]="]', EBNF),
    ],
    "structural_tag": [json.loads(GUIDES["structural_tag"].guide)],
}


def of_kinds(guides: dict[str, list[Any]]) -> list[Guide]:
    return [
        Guide(GuideType(kind), text if isinstance(text, str) else json.dumps(text))
        for kind, texts in guides.items()
        for text in texts
    ]


@pytest.mark.parametrize("guide", of_kinds(NOTHING), ids=lambda guide: guide.guide)
def test_a_guide_that_allows_no_text_is_refused_before_anything_runs(run: Run, guide: Guide) -> None:
    async def main() -> None:
        with pytest.raises(GuideError) as refused:
            await guides().grammar(guide)
        assert "\n" not in str(refused.value)

    run(main())


@pytest.mark.parametrize("guide", of_kinds(SOMETHING), ids=lambda guide: guide.guide)
def test_a_guide_of_which_a_part_allows_nothing_is_followed(run: Run, guide: Guide) -> None:
    run(guides().grammar(guide))


def test_bounds_are_exact() -> None:
    check(Guide(GuideType.REGEX, "a" * MAX_CHARACTERS))
    check(Guide(GuideType.REGEX, "(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH))
    check(Guide(GuideType.REGEX, "()" * 1000 + "\\(" * 1000))
    check(Guide(GuideType.JSON_SCHEMA, "[" * MAX_DEPTH + "]" * MAX_DEPTH))
    for kind, text in (
        (GuideType.REGEX, "a" * (MAX_CHARACTERS + 1)),
        (GuideType.REGEX, "(" * (MAX_DEPTH + 1)),
        (GuideType.EBNF_GRAMMAR, "[{(" * 22),
        (GuideType.JSON_SCHEMA, "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)),
        (GuideType.STRUCTURAL_TAG, "["),
    ):
        with pytest.raises(GuideError):
            check(Guide(kind, text))
