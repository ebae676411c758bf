"""The Python that has vLLM, Speculators and SGLang, and what it says."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from trtspec.pipeline.machine import ask_flags
from trtspec.recipe.migration.tool import OwnParser

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("TRTSPEC_VLLM_PYTHON", ROOT / ".venv-vllm/bin/python"))
"""Set up by `make test-vllm`."""


def read_by(server: OwnParser, commands: list[list[str]]) -> list[dict[str, Any]]:
    """What a server's own parser reads of commands."""
    assert server.adds
    found: list[dict[str, Any]] = _said(
        "ask_flags.py", commands, ask_flags.__file__, server.parser, server.adds
    )
    return found


def ask(script: str, launches: list[Any]) -> list[dict[str, Any]]:
    """What a script of this folder says of them."""
    found: list[dict[str, Any]] = _said(script, launches)
    return found


def _said(script: str, given: list[Any], *arguments: str) -> Any:
    """The last line of a script of this folder, which reads `given` on stdin; both are JSON."""
    result = subprocess.run(
        [PYTHON, Path(__file__).with_name(script), *arguments],
        input=json.dumps(given),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd="/",
    )
    return json.loads(result.stdout.splitlines()[-1])
