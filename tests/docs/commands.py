"""The page of every command and option, from the command line's own objects."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from trtspec.cli.commands import TABLE, load

ABOUT = """\
# Commands

Each command of the command line (CLI) with its arguments, options and their [defaults; ranges], as `trtspec
COMMAND --help` prints them, with examples. [Conventions](conventions.md) has exit statuses and environment
variables.
"""
SEVERAL = "Options of several commands"
_MANY = 2
"""An option that at least so many commands describe alike is described once."""
_NOTES = re.compile(r"^(?P<about>.*?)\s*\[(?P<notes>[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]$", re.DOTALL)


def page() -> str:
    """Returns the page as Markdown."""
    commands = list(named())
    shared = _shared(commands)
    once = [f"## {SEVERAL}", "", *shared.values(), ""]
    return "\n".join([ABOUT, *once, *(_section(name, command, shared) for name, command in commands)])


def named() -> Iterator[tuple[str, Any]]:
    """Yields each command that does something by its words on the command line, in the order of the help."""
    for entry in TABLE:
        command = load(entry)
        members = getattr(command, "commands", None)
        if members is None:
            yield entry.name, command
        else:
            yield from ((f"{entry.name} {name}", member) for name, member in members.items())


def _shared(commands: list[tuple[str, Any]]) -> dict[str, str]:
    """Returns the rows that many commands have, by the option; of two of a name, the more frequent."""
    rows = Counter(pair for name, command in commands for pair in _rows(name, command).items())
    many = {pair: number for pair, number in rows.items() if number >= _MANY}
    return dict(sorted(many, key=many.__getitem__))


def _section(name: str, command: Any, shared: dict[str, str]) -> str:
    lines = [f"## `trtspec {name}`", "", _text(command), ""]
    rows = _rows(name, command)
    if own := [row for option, row in rows.items() if shared.get(option) != row]:
        lines += [*own, ""]
    if others := [f"`{option}`" for option, row in rows.items() if shared.get(option) == row]:
        lines += [f"[Also](#{SEVERAL.lower().replace(' ', '-')}): {', '.join(others)}", ""]
    return "\n".join(lines)


def _rows(name: str, command: Any) -> dict[str, str]:
    """Returns a row for each argument and option, by its name, without what the help does not show."""
    context = command.context_class(command, info_name=name)
    rows = dict[str, str]()
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or "--help" in record[0]:
            continue
        about, notes = record[1] or "", ""
        if found := _NOTES.match(about):
            about, notes = found["about"], found["notes"].replace("required", "").replace("default: ", "")
        noted = f" [{notes}]" if notes else ""
        # A default or a bound says as much as the name of a plain type.
        name = re.sub(r" <(str|path|int|float)>", "", record[0])
        rows[record[0].split()[0]] = f"- `{name}`: {_escaped(' '.join(about.split()))}{noted}"
    return rows


def _text(command: Any) -> str:
    return _escaped((command.help or "").replace("\b", "").strip())


def _escaped(text: str) -> str:
    """Returns a text whose `<name>` is no tag of HTML."""
    return re.sub(r"<(\w+)>", r"`<\1>`", text)
