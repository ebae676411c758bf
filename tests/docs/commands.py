"""The page of every command and option, from the command line's own objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trtspec.cli.commands import TABLE, load

ABOUT = """\
# Commands

Each command with its arguments and options, as `trtspec COMMAND --help` prints them.

Results go to stdout; progress and messages go to stderr. [Conventions](conventions.md) has exit statuses,
`--json` and environment variables.
"""
_NOTES = re.compile(r"^(?P<about>.*?)\s*\[(?P<notes>[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]$", re.DOTALL)


def page() -> str:
    """Returns the page as Markdown."""
    commands = list(named())
    index = [f"| [`{name}`](#trtspec-{name.replace(' ', '-')}) | {_sentence(it)} |" for name, it in commands]
    head = [ABOUT, "| command | what it does |", "|---|---|", *index, ""]
    return "\n".join([*head, *(_section(name, command) for name, command in commands)])


def named() -> Iterator[tuple[str, Any]]:
    """Yields each command that does something by its words on the command line, in the order of the help."""
    for entry in TABLE:
        command = load(entry)
        members = getattr(command, "commands", None)
        if members is None:
            yield entry.name, command
        else:
            yield from ((f"{entry.name} {name}", member) for name, member in members.items())


def _section(name: str, command: Any) -> str:
    context = command.context_class(command, info_name=name)
    usage = " ".join(["trtspec", name, *command.collect_usage_pieces(context)])
    lines = [f"## `trtspec {name}`", "", _text(command), "", "```text", usage, "```", ""]
    if rows := [row for parameter in command.get_params(context) if (row := _row(parameter, context))]:
        lines += ["| argument or option | meaning | default, range |", "|---|---|---|", *rows, ""]
    if examples := [line.strip() for line in (command.epilog or "").splitlines() if "trtspec" in line]:
        lines += ["```sh", *examples, "```", ""]
    return "\n".join(lines)


def _row(parameter: Any, context: Any) -> str | None:
    """Returns a row of the table, or None for what the help does not show."""
    record = parameter.get_help_record(context)
    if record is None or "--help" in record[0]:
        return None
    name, about = record[0], record[1] or ""
    notes = ""
    if found := _NOTES.match(about):
        about, notes = found["about"], found["notes"].replace("default: ", "")
    return f"| `{_cell(name)}` | {_cell(about)} | {_cell(notes)} |"


def _text(command: Any) -> str:
    return _escaped((command.help or "").replace("\b", "").strip())


def _sentence(command: Any) -> str:
    return _cell(_text(command).split("\n\n")[0])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Returns a text whose `<name>` is no tag of HTML."""
    return re.sub(r"<(\w+)>", r"`<\1>`", text)
