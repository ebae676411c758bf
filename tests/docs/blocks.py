"""What the pages of the documentation show as commands, and what each needs to be run.

A fenced block with a title (`sh title="Needs a GPU"`) is not run by the suite; the title says why, to readers
too. `tests/e2e/test_docs.py` runs all others.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
GENERATED = "Written by `make docs-reference`"
_FENCE = re.compile(r'^```(\w*)(?: title="([^"]*)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_SHELL = ("sh", "console")
_OPERATORS = {"|", "||", "&&", "&", ";", ">", "<", "2>"}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of commands."""

    page: Path
    language: str
    """`sh`: lines that can be pasted; `console`: lines after `$ `, with what they print."""
    title: str
    """Why the suite does not run it; empty where it does."""
    text: str

    @property
    def script(self) -> str:
        """The commands alone."""
        if self.language == "sh":
            return self.text
        lines = re.findall(r"^\$ (.*(?:\\\n.*)*)$", self.text, re.MULTILINE)
        return "".join(f"{line}\n" for line in lines)

    @property
    def printed(self) -> list[str]:
        """The lines of a `console` that commands print; `…` stands for what differs from run to run."""
        shown = re.sub(r"^\$ .*(?:\\\n.*)*\n", "", self.text, flags=re.MULTILINE)
        return shown.splitlines() if self.language == "console" else []


def is_printed(line: str, said: str) -> bool:
    """Says whether a line of a page was printed; columns of tables may be of any width."""
    pattern = ".*".join(re.sub(r"(\\ )+", " +", re.escape(part)) for part in line.split("…"))
    return re.search(f"^{pattern}$", said, re.MULTILINE) is not None


def blocks(page: Path) -> list[Block]:
    """Returns the blocks of commands of a page, in its order."""
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(page, language, title, text) for language, title, text in found if language in _SHELL]


def command_lines(page: Path) -> Iterator[list[str]]:
    """Yields the words behind `trtspec` of each command of a page, in its blocks and in its sentences."""
    for block in blocks(page):
        for line in block.script.replace("\\\n", " ").splitlines():
            yield from _commands(line)
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for line in re.findall(r"`(trtspec [^`]+)`", prose):
        yield from _commands(" ".join(line.split()))


def _commands(line: str) -> Iterator[list[str]]:
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # A quotation that ends on a later line has no command in it.
        words = line.split()
    command: list[str] | None = None
    for word in [*words, ";"]:
        if word in _OPERATORS:
            if command is not None:
                yield command
            command = None
        elif command is not None:
            command.append(word)
        elif word == "trtspec":
            command = []
