"""Writes what a server's own parser says of its flags to the folder of its backend.

TRTSPEC_VLLM_PYTHON=… python -m tests.servers.write_switches vllm

A server that is not installed is read in its sources: the newest release that a recipe can name, and what
later ones say of themselves.

python -m tests.servers.write_switches tensorrt_llm_pytorch serve.py trtllm_serve_cli.yaml
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import yaml

from tests.servers.judges import PYTHON
from trtspec.backends.shared.servers import ServerBackend
from trtspec.backends.table import backend_named
from trtspec.pipeline.machine.host import flags_of
from trtspec.recipe.migration.command import OFF, OwnFlags
from trtspec.recipe.migration.reading import FlagTable
from trtspec.recipe.migration.tool import OwnParser

_WIDTH = 106


def path_of(server: str) -> Path:
    """The module that has the lists: a long one is apart from the other flags."""
    folder = Path(sys.modules[type(backend_named(server)).__module__].__file__ or "").parent
    return next(path for name in ("switches.py", "flags.py") if (path := folder / name).exists())


def own_parser(server: str) -> OwnParser:
    (tool,) = backend_named(server).tools()
    assert tool.own_parser
    return tool.own_parser


def rewritten(text: str, own: OwnFlags, table: FlagTable, later: OwnFlags | None = None) -> str:
    """Returns the module with the parser's flags; those that the parser does not know are of before it."""
    later = later or {}
    syntax = table.of_parser({**own, **later}).syntax
    # vLLM's parser makes the other form of each switch by itself, and so does its syntax here.
    made = {OFF + flag.removeprefix("--") for flag in {*syntax.switches, *own}} if syntax.folds else set()
    names = {table.syntax.name(flag) for flag in own}
    lists = {
        "SWITCHES": syntax.switches - made,
        "ONE_WAY": {flag for flag in syntax.switches - made if flag.replace("--", OFF, 1) not in own},
        "LISTS": syntax.lists - made,
        "LATER": {table.syntax.name(flag) for flag in later} - names,
    }
    for name, flags in lists.items():
        for before, after in re.findall(rf'({name} = names_in\("""\n)(.*?)\n"""\)', text, re.DOTALL):
            text = text.replace(before + after, before + _lines(flags))
    return text


def of_source(path: Path) -> OwnFlags:
    """The flags of trtllm-serve's `serve`: of its source, or of NVIDIA's own list of them (from 1.3 on)."""
    text = path.read_text()
    found = _listed(text) if path.suffix in (".yaml", ".yml") else _decorating(text)
    return {
        flag: (next(name for name in flags if not name.startswith(OFF)), 0 if is_flag else None)
        for flags, is_flag in found
        for flag in flags
    }


def _listed(text: str) -> Iterator[tuple[list[str], bool]]:
    for option in yaml.safe_load(text)["commands"]["serve"]["options"].values():
        yield option["flags"], option["is_flag"]


def _decorating(text: str) -> Iterator[tuple[list[str], bool]]:
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    for call in chain.from_iterable(node.decorator_list for node in functions if node.name == "serve"):
        assert isinstance(call, ast.Call)
        words = [word.value for word in call.args if isinstance(word, ast.Constant)]
        if flags := [word for word in words if isinstance(word, str) and word.startswith("--")]:
            yield flags, any(key.arg == "is_flag" for key in call.keywords)


def _lines(flags: Iterable[str]) -> str:
    words = textwrap.wrap(" ".join(sorted(flags)), _WIDTH, break_on_hyphens=False)
    return "\n".join(f"    {line}" for line in words)


def main() -> None:
    server, *sources = sys.argv[1:]
    backend, path = backend_named(server), path_of(server)
    assert isinstance(backend, ServerBackend)
    read = [of_source(Path(source)) for source in sources] or [flags_of(PYTHON, own_parser(server))]
    later = {flag: found for flags in read[1:] for flag, found in flags.items()}
    path.write_text(rewritten(path.read_text(), read[0], backend.flags, later))


if __name__ == "__main__":
    main()
