"""Grammars of guides, compiled by xgrammar for one vocabulary.

TensorRT-LLM's runtime follows guides with xgrammar (https://github.com/mlc-ai/xgrammar) too
(`batch_manager/guidedDecoder.cpp`), so a guide means the same on each backend. NVIDIA's images have it from
0.1.21 (TensorRT-LLM 1.0) on. Its releases take different arguments: each gets those in its signatures.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.serving.errors import GuideError
from trtspec.serving.executor import Guide, GuideType

# The beginning of a message: a time and a line of xgrammar's source.
_PLACE = re.compile(r"\[[\d:]+\] \S+:\d+: (Check failed: \(.*?\) is false: )?")
_LONGEST_MESSAGE = 300

MAX_MASK_S = 0.05
"""The largest CPU time of one mask, in seconds: all requests wait for it. Usually it takes microseconds."""
MOST_BLANKS = 32
"""The largest number of consecutive blanks in a schema's JSON: a weak model may write them without end."""
_MOST_ROLLBACK = 1 << 16  # tokens, more than any draft has
_TRIGGERS = 'a tag here is {"structures": [{"begin", "schema", "end"}], "triggers": [...]}'
TOO_AMBIGUOUS = f"it is so ambiguous that a token takes over {MAX_MASK_S:g} s"


_LONGEST_PRINTED = 1 << 16  # characters
# Of a printed rule: strings, classes that may be empty, other ones, names that must occur, a lookahead.
_RULE = re.compile(r"^([\w.-]+) ::= (.*)$", re.MULTILINE)
_PART = re.compile(
    r'"(?:\\.|[^"\\])*"|(?P<class>\[\^(?=(?:\\.|[^\]\\])*10ffff)(?:\\.|[^\]\\])*\](?!\*))'
    r"|\[(?:\\.|[^\]\\])*\]|(?P<name>[\w.-]+\b)(?!\{0,)|(?P<ahead>\(=)|(?P<or>\|)"
)


def is_installed() -> bool:
    """Says whether xgrammar and its imports are installed."""
    return all(find_spec(package) is not None for package in ("xgrammar", "transformers"))


class Grammar:
    """A compiled grammar over `vocab_size` tokens. Any thread may use it."""

    def __init__(self, compiled: Any, make_matcher: Callable[[Any], Any], vocab_size: int) -> None:
        self._compiled, self._make_matcher, self.vocab_size = compiled, make_matcher, vocab_size
        self.size: int = compiled.memory_size_bytes
        self.problem: str | None = None
        """The reason why it cannot be followed, which its users set."""

    def matcher(self) -> Matcher:
        """Returns a matcher at the begin of a text."""
        return Matcher(self._make_matcher(self._compiled))


class Matcher:
    """A position in a text of a grammar. It is used on one thread at a time."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def accept(self, token_id: int) -> bool:
        """Advances by a token; returns False, and stays, if the grammar forbids it."""
        return bool(self._matcher.accept_token(token_id))

    def back(self, count: int) -> None:
        """Goes back by `count` tokens."""
        if count:
            self._matcher.rollback(count)

    def fill(self, bitmasks: Bitmasks, row: int) -> None:
        """Sets a row to the tokens that may come next."""
        self._matcher.fill_next_token_bitmask(bitmasks.tensor, row)


class Bitmasks:
    """The tokens that may come next at `rows` positions: a bit for each token, and one for the end.

    `words` is int32 `[rows, words]`. `tensor` is torch's view of it, which every release of xgrammar fills.
    """

    def __init__(self, rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.words = np.full((rows, (vocab_size + 32) // 32), -1, np.int32)
        self.tensor = import_module("torch").from_numpy(self.words)

    def allows(self, row: int, token_id: int) -> bool:
        return bool(self.words[row, token_id // 32] >> token_id % 32 & 1)

    def ends(self, row: int) -> bool:
        """Says whether the text may end at the row's position."""
        return self.allows(row, self._vocab_size)

    def is_open(self, row: int) -> bool:
        """Says whether any token or the end may come next."""
        bits = self.words[row].view(np.uint8)
        return bool(np.unpackbits(bits, count=self._vocab_size + 1, bitorder="little").any())

    def unpacked(self, rows: int) -> npt.NDArray[np.bool_]:
        """Returns the first `rows` as bool `[rows, vocab_size]`."""
        numbers = self.words[:rows].view(np.uint8)
        return np.unpackbits(numbers, axis=1, count=self._vocab_size, bitorder="little").view(np.bool_)


class GuideCompiler:
    """Compiles guides for a `vocabulary`: the bytes of every token id, none for special and unknown ones.

    One more token after the vocabulary ends a text. So a grammar is the same for all end tokens, and never
    allows special tokens, which have no text.
    """

    def __init__(self, vocabulary: list[bytes]) -> None:
        self._xgrammar = xgrammar = import_module("xgrammar")
        self._size = len(vocabulary)
        tokens = xgrammar.TokenizerInfo(
            [*vocabulary, b""], xgrammar.VocabType.RAW, vocab_size=self._size + 1, stop_token_ids=[self._size]
        )
        # One thread leaves the processors to engines. `Guides` caches the grammars.
        self._compiler = xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)
        bounded = "max_whitespace_cnt" in signature(self._compiler.compile_json_schema).parameters
        self._blanks = {"max_whitespace_cnt": MOST_BLANKS} if bounded else {}
        # The oldest releases need a limit to go back at all. Releases with the bound above have none.
        bound = {} if bounded else {"max_rollback_tokens": _MOST_ROLLBACK}
        self._make_matcher = partial(xgrammar.GrammarMatcher, **bound)
        by_triggers = "triggers" in signature(self._compiler.compile_structural_tag).parameters
        self._read_tag = self._read_triggers if by_triggers else self._compiler.compile_structural_tag

    def compile(self, guide: Guide) -> Grammar:
        """Returns the grammar; `GuideError` if xgrammar refuses it or is slow, or no text is possible."""
        try:
            compiled = self._read(guide)
            begin = time.thread_time()
            first = self._first(compiled)
            seconds = time.thread_time() - begin
            has_text = self._has_text(str(compiled.grammar))
        except GuideError:
            raise
        except Exception as error:  # xgrammar raises RuntimeError, and some classes of its own
            raise GuideError(_line(error)) from None
        if seconds > MAX_MASK_S:
            raise GuideError(TOO_AMBIGUOUS)
        if not first.is_open(0):
            raise GuideError("no token of the model can begin a text of this grammar")
        if not has_text:
            raise GuideError("no text of this grammar has an end")
        return Grammar(compiled, self._make_matcher, self._size)

    def _first(self, compiled: Any) -> Bitmasks:
        """Returns the tokens that may begin a text of a grammar."""
        first = Bitmasks(1, self._size)
        Matcher(self._make_matcher(compiled)).fill(first, 0)
        return first

    def _has_text(self, printed: str) -> bool:
        """Says whether a printed grammar has any complete text; True for one that is too long to look at.

        A rule has one if, in any of its alternatives, every rule has one. Tags are no rules, and have one.
        """
        if len(printed) > _LONGEST_PRINTED:
            return True
        rules = {name: self._alternatives(body) for name, body in _RULE.findall(printed)}
        complete, before = set[str](), -1
        while before < len(complete):
            before = len(complete)
            for name in reversed(rules):  # Most rules come after those that need them.
                if any(complete.issuperset(needed & rules.keys()) for needed in rules[name]):
                    complete.add(name)
        return "root" in complete or "root" not in rules  # Some releases name the root of a tag otherwise.

    def _alternatives(self, body: str) -> list[set[str]]:
        """Returns the names in each alternative of a rule; "root" stands for a class that is empty."""
        found: list[set[str]] = [set()]
        for part in _PART.finditer(body):
            if part["ahead"]:
                break
            if part["or"]:
                found.append(set())
            elif part["class"]:
                first = self._first(self._compiler.compile_grammar(f"root ::= {part[0]}"))
                found[-1].update(() if first.is_open(0) else ("root",))
            elif part["name"]:
                found[-1].add(part["name"])
        return found

    def _read(self, guide: Guide) -> Any:
        compiler = self._compiler
        if guide.guide_type is GuideType.JSON:
            return compiler.compile_builtin_json_grammar()
        read = {
            GuideType.JSON_SCHEMA: partial(compiler.compile_json_schema, **self._blanks),
            GuideType.REGEX: compiler.compile_regex,
            GuideType.EBNF_GRAMMAR: compiler.compile_grammar,
            GuideType.STRUCTURAL_TAG: self._read_tag,
        }[guide.guide_type]
        return read(guide.guide)

    def _read_triggers(self, text: str) -> Any:
        """Compiles a structural tag in the form of xgrammar before 0.1.25.

        TensorRT-LLM 1.0 parses it with nlohmann's JSON (`batch_manager/guidedDecoder.cpp`), which refuses NaN
        and half a surrogate pair, and sorts the keys of a schema. A tag that it cannot parse would end every
        running request.
        """
        found = json.loads(text)
        try:
            json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
            tags = [
                self._xgrammar.StructuralTagItem(
                    begin=tag["begin"], schema=json.dumps(tag["schema"], sort_keys=True), end=tag["end"]
                )
                for tag in found["structures"]
            ]
            return self._compiler.compile_structural_tag(tags, found["triggers"])
        except (KeyError, TypeError, ValueError):
            raise GuideError(_TRIGGERS) from None


def _line(error: Exception) -> str:
    line = " ".join(_PLACE.sub("", str(error)).split()) or type(error).__name__
    return line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 3] + "..."
