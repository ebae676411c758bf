"""Asks a server's own parser for its flags; a Python that has the server runs this file's text.

`python -c TEXT PARSER ADDS`, both `module:name`, makes a PARSER of argparse, to which ADDS gives the server's
flags. `python -c TEXT COMMAND` asks a COMMAND of click. The last line of stdout is JSON: each flag with the
first name that it has, and how many values it takes, as argparse says it. The file imports nothing but the
standard library.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from operator import attrgetter
from typing import Any


def parser(kind: str, adds: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = _named(kind)()
    _named(adds)(made)
    return made


def of_click(command: str) -> dict[str, Any]:
    return {
        name: (option.opts[0], 0 if option.is_flag else None)
        for option in _named(command).params
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("-")
    }


def of_argparse(kind: str, adds: str) -> dict[str, Any]:
    return {
        name: (action.option_strings[0], action.nargs)
        for action in parser(kind, adds)._actions
        for name in action.option_strings
        if not isinstance(action, argparse._HelpAction)
    }


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return attrgetter(attribute)(import_module(module))


if __name__ == "__main__":
    names = sys.argv[1:]
    found = of_click(*names) if len(names) == 1 else of_argparse(*names)
    sys.stdout.write(json.dumps(found) + "\n")
