"""Reads a script as people paste it: its commands, with the variables and files of earlier lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from trtspec.base.errors import TrtspecError
from trtspec.recipe.migration.command import split

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_COMMENTS = re.compile(r"^[ \t]*#.*(?:\n|\Z)", re.MULTILINE)
_PROMPT = re.compile(r"^[ \t]*\$ ", re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::?-(?P<default>[^{}]*))?\}|(?P<bare>[A-Za-z_]\w*))")
_ARRAY = re.compile(r"\$\{\w+\[[@*]\]\}")
_HEREDOC = re.compile(
    r"^(?P<before>[^\n]*?)<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)(?P<after>[^\n]*)\n"
    r"(?P<text>.*?)^[ \t]*(?P=end)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_WRITTEN = re.compile(r"(?:>|\btee\s+(?:-a\s+)?)\s*(?P<file>[^\s>|&;]+)")
_SHELL, _INNER = re.compile(r"(?:.*/)?(?:ba|da|z)?sh"), re.compile(r"-[eilx]*c")


@dataclass(slots=True)
class Script:
    """The commands of a text, with their variables and files; nothing of it runs."""

    commands: list[list[str]] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)
    """The variables of the environment of all commands."""
    files: dict[str, str] = field(default_factory=dict)
    """The texts of the files that the script writes itself (`cat > FILE <<EOF`), by their names."""


def read_script(text: str) -> Script:
    """Returns the commands of a text; raises TrtspecError for one that no shell could parse, and for
    arrays."""
    script, known = Script(), dict[str, str]()
    text = _HEREDOC.sub(lambda found: _kept(found, script), text)
    for words in split(_PROMPT.sub("", _COMMENTS.sub("", text))):
        own = words[words[0] == "export" :]
        if own and all(map(ASSIGNMENT.match, own)):
            for word in own:
                name, _, value = _expanded(word, known).partition("=")
                known[name] = value
                if len(own) < len(words):
                    script.exported[name] = value
        else:
            script.commands += _inside(list(_words(words, known)))
    return script


def _kept(found: re.Match[str], script: Script) -> str:
    """Keeps the file that a heredoc writes; drops a heredoc that writes none."""
    if place := _WRITTEN.search(found["before"] + found["after"]):
        script.files[place["file"].strip("'\"").removeprefix("./")] = found["text"]
    return ""


def _words(words: Sequence[str], known: dict[str, str]) -> Iterator[str]:
    for word in words:
        if _ARRAY.search(word):
            raise TrtspecError(word, "is an array of a shell, which does not run here", "write its words")
        value = _expanded(word, known)
        # A variable that stands alone is the flags that it lists.
        is_list = value.startswith("-") and _VARIABLE.fullmatch(word)
        yield from shlex.split(value) if is_list else (value,)


def _expanded(word: str, known: dict[str, str]) -> str:
    """Returns a word with the values of known variables; an unknown one stays as it is written."""

    def value(found: re.Match[str]) -> str:
        default = found[0] if found["default"] is None else found["default"]
        return known.get(found["braced"] or found["bare"], default)

    return _VARIABLE.sub(value, word)


def _inside(words: list[str]) -> list[list[str]]:
    """Returns the commands of `sh -c TEXT`, each after the words before that; or else the command itself."""
    for place, (option, text) in enumerate(pairwise(words)):
        if _INNER.fullmatch(option) and any(map(_SHELL.fullmatch, words[:place])):
            inner = read_script(text)
            exported = [f"{name}={value}" for name, value in inner.exported.items()]
            return [[*words[:place], *exported, *command] for command in inner.commands]
    return [words]
