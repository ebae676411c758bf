"""Writes what a server's own parser says of its flags to the folder of its backend.

TRTSPEC_VLLM_PYTHON=… python -m tests.servers.write_switches vllm
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from tests.servers.judges import PYTHON
from trtspec.backends.served.backend import ServerBackend
from trtspec.backends.table import backend_named
from trtspec.pipeline.machine.installed import flags_of
from trtspec.recipe.migration.command import OFF, OwnFlags
from trtspec.recipe.migration.flag_table import FlagTable
from trtspec.recipe.migration.tool import OwnParser

_WIDTH = 96


def path_of(server: str) -> Path:
    return Path(sys.modules[type(backend_named(server)).__module__].__file__ or "").with_name("switches.py")


def own_parser(server: str) -> OwnParser:
    (tool,) = backend_named(server).tools()
    assert tool.own_parser
    return tool.own_parser


def rewritten(text: str, own: OwnFlags, table: FlagTable) -> str:
    """Returns the module with the parser's flags; those that the parser does not know are of before it."""
    syntax = table.told_by(own).syntax
    for name, flags in (("SWITCHES", syntax.switches), ("LISTS", syntax.lists)):
        # vLLM's parser makes the other form of each switch by itself, and so does its syntax here.
        made = {OFF + flag.removeprefix("--") for flag in {*flags, *own}} if syntax.folds else set()
        ((before, after),) = re.findall(rf"({name} = flag_names\(\n)(.*?)\n\)", text, re.DOTALL)
        text = text.replace(before + after, before + _lines(flags - made))
    return text


def _lines(flags: Iterable[str]) -> str:
    lines = textwrap.wrap(" ".join(sorted(flags)), _WIDTH, break_on_hyphens=False)
    return "\n".join([*(f'    "{line} "' for line in lines[:-1]), f'    "{lines[-1]}"'])


def main() -> None:
    server = sys.argv[1]
    backend, path = backend_named(server), path_of(server)
    assert isinstance(backend, ServerBackend)
    path.write_text(rewritten(path.read_text(), flags_of(PYTHON, own_parser(server)), backend.flags))


if __name__ == "__main__":
    main()
