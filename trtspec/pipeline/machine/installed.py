"""Versions of Python packages, in this Python and in that of a command of TensorRT-LLM."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

COMMAND = "trtllm-build"
"""The command whose Python has TensorRT-LLM."""
ENGINE_PACKAGES = ("tensorrt_llm", "tensorrt")
_TIMEOUT_S = 10
_ASK = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_ASK_ALL = """
import json
from importlib.metadata import distributions
print(json.dumps({item.metadata["Name"]: item.version for item in distributions()}))
"""


def installed(packages: Iterable[str]) -> dict[str, str]:
    """The version of each of these packages that this Python has."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def all_packages() -> dict[str, str]:
    """Every package of trtllm-build's Python and of this one; the version is the former's if both have it."""
    command = shutil.which(COMMAND)
    beside = _ask(_interpreter(Path(command)), _ASK_ALL) if command else {}
    here = {item.metadata["Name"]: item.version for item in distributions()}
    return dict(sorted((here | beside).items()))


def engine_versions() -> dict[str, str]:
    """The versions of TensorRT-LLM and TensorRT in trtllm-build's Python, or else in this one."""
    command = shutil.which(COMMAND)
    beside = installed_beside(Path(command), ENGINE_PACKAGES) if command else {}
    return installed(ENGINE_PACKAGES) | beside


def installed_beside(command: Path, packages: Iterable[str]) -> dict[str, str]:
    """The version of each package that a console script's Python has; empty for another kind of command."""
    return _ask(_interpreter(command), _ASK, *packages)


def installed_in(python: Path, packages: Iterable[str]) -> dict[str, str]:
    """The version of each package that another Python has; empty for one that does not run."""
    return _ask(str(python), _ASK, *packages)


def _ask(python: str | None, script: str, *names: str) -> dict[str, str]:
    if python is None:
        return {}
    try:
        result = subprocess.run(  # noqa: S603
            [python, "-c", script, *names], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        found = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    return found if isinstance(found, dict) else {}


def _interpreter(command: Path) -> str | None:
    """The Python that a script's first line names; None if it names another program, or has arguments."""
    try:
        with command.open("rb") as stream:
            line = stream.readline(300).decode("utf-8", "replace")
    except OSError:
        return None
    found = re.fullmatch(r"#!\s*(/\S*/python[\d.]*)\s*", line)
    return found[1] if found else None
