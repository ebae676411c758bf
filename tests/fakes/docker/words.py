"""Words of a command line, and docker's words for what is wrong with them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(os.environ.get("FAKE_DOCKER", "/nowhere"))
_HELP = "Run 'docker run --help' for more information"


def fail(message: str, status: int = 1) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    sys.exit(status)


def daemon_error(message: str, status: int = 125) -> NoReturn:
    fail(f"docker: Error response from daemon: {message}\n\n{_HELP}", status)


def parse(words: list[str], command: str, values: set[str], lists: set[str], switches: set[str]) -> Any:
    """Options up to the first other word, as Go's pflag takes them; the rest in "words"."""
    found: dict[str, Any] = {name: [] for name in lists} | dict.fromkeys(switches, False)
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        if name in switches and not equals:
            found[name] = True
        elif name in values | lists:
            if not equals and not words:
                fail(f"flag needs an argument: {name}\n\nUsage:  docker {command} [OPTIONS]", 125)
            value = value if equals else words.pop(0)
            found[name] = [*found[name], value] if name in lists else value
        else:
            fail(f"unknown flag: {name}\n\nUsage:  docker {command} [OPTIONS]", 125)
    return found | {"words": words}
