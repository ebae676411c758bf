"""The flags of a server's own parser, and what it reads of commands; run by a Python that has the server.

The first argument is the server. Reads a JSON list of lists of arguments on stdin, and writes as the last
line of stdout the flags, each with how many values it has as argparse says it, and the values of each list.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


def parser(server: str) -> argparse.ArgumentParser:
    if server == "vllm":
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        of_vllm: argparse.ArgumentParser = make_arg_parser(FlexibleArgumentParser())
        return of_vllm
    from sglang.srt.server_args import ServerArgs

    made = argparse.ArgumentParser()
    ServerArgs.add_cli_args(made)
    return made


def main() -> None:
    made = parser(sys.argv[1])
    flags: dict[str, Any] = {}
    for action in made._actions:
        for name in action.option_strings:
            flags[name] = [action.option_strings[0], action.nargs]
    read = [vars(made.parse_args(words)) for words in json.load(sys.stdin)]
    print(json.dumps([flags, read], default=str))


if __name__ == "__main__":
    main()
