"""Splits a command line into words and flags; no shell ever sees it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trtspec.base.errors import TrtspecError

_NUMBER = re.compile(r"-\.?\d")


def is_flag(word: str) -> bool:
    """True for a word that begins with `-` and is neither a negative number nor `-` alone."""
    return len(word) > 1 and word.startswith("-") and not _NUMBER.match(word)


_PUNCTUATION = ";&|<>\n"
_BOOLEANS = ("true", "false")
_SEVERAL = ("+", "*", "?")
_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
_STREAM = re.compile(r"(?<=\s)[0-9](?=[<>])")  # The 2 of 2>&1.
_COMMENT, _QUOTED = r"(?<!\S)\#[^\n]*", r"\\.|'[^']*'"
_TICKED = r"`(?:\\.|[^`\\])*`"
_SPOKEN = re.compile(rf"{_COMMENT}|{_QUOTED}|{_TICKED}|\"|\$\(", re.DOTALL)
_NESTED = re.compile(rf"{_COMMENT}|{_QUOTED}|{_TICKED}|\"(?:\\.|[^\"\\])*\"|[()]", re.DOTALL)
_PLACE = re.compile("\ue000(\\d+)\ue001")  # Unicode gives these characters to nobody.
OFF = "--no-"
"""The beginning of a flag that turns another one off."""

OwnFlags = Mapping[str, tuple[str, int | str | None]]
"""The flags of a parser, each with its first name, and the number of values that argparse takes."""


@dataclass(frozen=True, slots=True)
class Option:
    """One flag of a command."""

    written: str
    """The flag as it was written."""
    name: str
    """The tool's name of the flag."""
    value: str | None = None
    """None for a flag without one. Several words are one value, with spaces between them."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """The syntax of a tool's flags; a flag that is not listed here has one value."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of flags."""
    switches: frozenset[str] = frozenset()
    """The flags that have no value, or a boolean after a space."""
    lists: frozenset[str] = frozenset()
    """The flags that have all words up to the next flag."""
    dash: str = "-"
    """The character that the tool writes between the words of its flags."""
    folds: bool = False
    """True if the tool takes `-` and `_` alike."""
    begun: tuple[frozenset[str], ...] = ()
    """The flags whose unique beginnings the tool takes for them, as argparse does: those of today, and then
    those of earlier releases, for what no flag of today begins with.
    """

    def name(self, written: str) -> str:
        """Returns the name of a flag; a part after a dot, which is a key of its JSON, stays as it is."""
        flag, dot, key = written.partition(".")
        flag, meant = self._folded(flag), self.meant(written)
        return (meant[0] if len(meant) == 1 else self.aliases.get(flag, flag)) + dot + key

    def meant(self, written: str) -> list[str]:
        """Returns the names of the flags that a flag is the beginning of; none for a whole flag."""
        flag = self._folded(written.partition(".")[0])
        if not flag.startswith("--") or any(flag in flags for flags in (*self.begun, self.aliases)):
            return []
        found = (
            {self.aliases.get(own, own) for own in flags if own.startswith(flag)} for flags in self.begun
        )
        return sorted(next(filter(None, found), ()))

    def _folded(self, flag: str) -> str:
        if not self.folds or not flag.startswith("--"):
            return flag
        return "--" + flag[2:].replace({"-": "_", "_": "-"}[self.dash], self.dash)

    def of_parser(self, own: OwnFlags, known: Collection[str]) -> Syntax:
        """Returns the syntax of the tool's own parser. Flags that it does not have stay as they are here.

        A flag with several names is called by the one that is `known`, else by its first.
        """
        firsts = {flag: first for flag, (first, _) in own.items() if not flag.startswith(OFF)}
        called = {first: flag for flag, first in firsts.items() if flag in known}
        aliases = {flag: called.get(first, first) for flag, first in firsts.items()}
        begun = (frozenset(own), *self.begun[1:]) if own and self.begun else self.begun
        told = replace(self, aliases={**aliases, **self.aliases}, begun=begun)
        counts = {told.name(flag): count for flag, (_, count) in own.items()}
        return replace(
            told,
            switches=self.switches - counts.keys() | {flag for flag, count in counts.items() if count == 0},
            lists=self.lists - counts.keys() | {flag for flag, count in counts.items() if count in _SEVERAL},
        )


def split(text: str) -> list[list[str]]:
    """Returns the words of each command of a text; redirections are left out.

    A line that begins with a flag continues the command above it, as if that line ended with a backslash.
    A substitution, `$(…)` or backticks, is a part of one word. Raises TrtspecError for a text that no shell
    could parse.
    """
    commands: list[list[str]] = [[]]
    try:
        text, substitutions = _apart(_STREAM.sub("", _CONTINUED.sub(" ", text)))
        lexer = shlex.shlex(text, posix=True, punctuation_chars=_PUNCTUATION)
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
        words = [_PLACE.sub(lambda found: substitutions[int(found[1])], word) for word in lexer]
    except ValueError as error:
        problem = f"is no command line: {str(error).lower()}"
        raise TrtspecError("the command", problem, "close what was opened: a quote, or a last \\") from None
    is_redirected = False
    for word in words:
        if word and set(word) <= set(_PUNCTUATION):
            is_redirected = not {"<", ">"}.isdisjoint(word)
            if not is_redirected:
                commands.append([])
        elif is_redirected:
            is_redirected = False
        else:
            commands[-1].append(word)
    found: list[list[str]] = []
    for command in filter(None, commands):
        if found and is_flag(command[0]):
            found[-1] += command
        else:
            found.append(command)
    return found


def _apart(text: str) -> tuple[str, list[str]]:
    """Returns a text without comments, and with a mark for each substitution, and the substitutions."""
    parts, found, place, is_quoted = list[str](), list[str](), 0, False
    while match := _SPOKEN.search(text, place):
        start, end = match.span()
        parts.append(text[place:start])
        if match[0][0] in "$`":
            end = closing(text, end) if match[0] == "$(" else end
            parts.append(f"\ue000{len(found)}\ue001")
            found.append(text[start:end])
        else:
            is_quoted ^= match[0] == '"'
            end = start + 1 if is_quoted and match[0][0] in "'#" else end  # Both are plain text there.
            if is_quoted or match[0][0] != "#":
                parts.append(text[start:end])
        place = end
    return "".join([*parts, text[place:]]), found


def closing(text: str, place: int) -> int:
    """Returns the place after the `)` that closes what is open there; raises TrtspecError without one."""
    depth = 1
    for match in _NESTED.finditer(text, place):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if not depth:
            return match.end()
    raise TrtspecError("the command", "is no command line: no closing parenthesis", "close it")


def names_in(text: str) -> frozenset[str]:
    """Returns the names in a text, separated by spaces."""
    return frozenset(text.split())


def options(words: Sequence[str], syntax: Syntax) -> Iterator[Option | str]:
    """Reads the words after a tool's name: its flags, and the other words, in their order."""
    words, place = _whole_objects(words), 0
    while place < len(words):
        word = words[place]
        place += 1
        if not is_flag(word):
            yield word
            continue
        written, has_value, value = word.partition("=")
        name = syntax.name(written)
        if has_value:
            yield Option(written, name, value)
        elif name in syntax.switches:
            is_told = place < len(words) and words[place].lower() in _BOOLEANS
            yield Option(written, name, words[place].lower() if is_told else None)
            place += is_told
        else:
            end, most = place, len(words) if name in syntax.lists else place + 1
            while end < min(most, len(words)) and not is_flag(words[end]):
                end += 1
            yield Option(written, name, " ".join(words[place:end]) if end > place else None)
            place = end


def _whole_objects(words: Sequence[str]) -> list[str]:
    """Joins the words of an object, `{method: ngram}`, whose quotes a shell has removed."""
    found: list[str] = []
    is_open = False
    for word in words:
        if is_open:
            found[-1] += f" {word}"
        else:
            found.append(word)
        is_open = found[-1].count("{") > found[-1].count("}")
    return list(words) if is_open else found


def as_words(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns flags with their values as words: nothing for None and False, for True the flag alone."""
    found: list[str] = []
    for flag, value in values.items():
        if value is None or value is False:
            continue
        found.append(flag)
        if isinstance(value, list | tuple):
            found += map(str, value)
        elif value is not True:
            found.append(str(value))
    return tuple(found)
