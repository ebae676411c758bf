"""Writes what a server's own parser says of its flags to the folder of its backend.

TRTSPEC_VLLM_PYTHON=… python -m tests.servers.write_switches vllm
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.servers.judges import flags_of
from trtspec.backends.served.backend import ServerBackend
from trtspec.backends.table import backend_named
from trtspec.recipe.migration.command import Syntax

_OFF = "--no-"
_WIDTH = 96


def path_of(server: str) -> Path:
    return Path(sys.modules[type(backend_named(server)).__module__].__file__ or "").with_name("switches.py")


def rewritten(text: str, flags: Mapping[str, Any], syntax: Syntax) -> str:
    """Returns the module with the parser's flags; those that the parser does not know are of before it."""
    known = {syntax.name(flag): count for flag, (_, count) in flags.items() if flag not in ("-h", "--help")}
    for name, is_one in (("SWITCHES", _is_switch), ("LISTS", _is_list)):
        ((before, after),) = re.findall(rf"({name} = flag_names\(\n)(.*?)\n\)", text, re.DOTALL)
        earlier = {flag for flag in re.findall(r"--[\w-]+", after) if flag not in known}
        now = {flag for flag, count in known.items() if is_one(count)}
        # vLLM's parser makes the other form of each switch by itself, and so does its syntax here.
        now -= {flag for flag in now if syntax.folds and flag.startswith(_OFF) and f"--{flag[5:]}" in now}
        text = text.replace(before + after, before + _lines(earlier | now))
    return text


def _is_switch(count: object) -> bool:
    return count == 0


def _is_list(count: object) -> bool:
    return count in ("+", "*", "?")


def _lines(flags: Iterable[str]) -> str:
    lines = textwrap.wrap(" ".join(sorted(flags)), _WIDTH, break_on_hyphens=False)
    return "\n".join([*(f'    "{line} "' for line in lines[:-1]), f'    "{lines[-1]}"'])


def main() -> None:
    server = sys.argv[1]
    backend, path = backend_named(server), path_of(server)
    assert isinstance(backend, ServerBackend)
    path.write_text(rewritten(path.read_text(), flags_of(server), backend.flags.syntax))


if __name__ == "__main__":
    main()
