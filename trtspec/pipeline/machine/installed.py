"""Versions of Python packages, the runtimes they make, and flags of servers, here and in other programs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

from trtspec.pipeline.engine.directory import Runtime
from trtspec.pipeline.machine.devices import find_gpus
from trtspec.recipe.migration.command import OwnFlags
from trtspec.recipe.migration.tool import OwnParser
from trtspec.recipe.releases import Release

COMMAND = "trtllm-build"
"""The command whose Python has TensorRT-LLM."""
ENGINE_PACKAGES = ("tensorrt_llm", "tensorrt")
_TIMEOUT_S = 10
_IMPORT_S = 120
"""Seconds for a server to be imported, with torch."""
_ASK_FLAGS = Path(__file__).with_name("ask_flags.py")
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


def python_of(server: OwnParser, packages: Iterable[str]) -> str | None:
    """The Python of a server's program, or this one if it has the server's package; None without either."""
    command = shutil.which(server.program)
    own = sys.executable if installed(packages) else None
    return (_interpreter(Path(command)) if command else None) or own


def flags_of(python: str | Path, server: OwnParser, seconds: float = _IMPORT_S) -> OwnFlags:
    """The flags of a server's own parser; none if its Python does not answer in so many seconds."""
    names = filter(None, (server.parser, server.adds))
    said = _ask(str(python), _ASK_FLAGS.read_text(encoding="utf-8"), *names, seconds=seconds)
    return {flag: (first, count) for flag, (first, count) in said.items()}


def image_runtime(release: Release) -> Runtime:
    """The runtime in a container of the release's image, on this machine's GPUs."""
    return Runtime(release.version, release.tensorrt, tuple(gpu.sm for gpu in find_gpus()))


def this_runtime() -> Runtime:
    """The runtime of this machine itself."""
    versions = engine_versions()
    sms = tuple(gpu.sm for gpu in find_gpus())
    return Runtime(versions.get("tensorrt_llm"), versions.get("tensorrt"), sms)


def _ask(python: str | None, script: str, *names: str, seconds: float = _TIMEOUT_S) -> dict[str, Any]:
    """Returns the object that a script prints in its last line. It imports nothing of this folder."""
    if python is None:
        return {}
    try:
        result = subprocess.run(  # noqa: S603
            [str(Path(python).absolute()), "-c", script, *names],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            cwd="/",
        )
        found = json.loads(result.stdout.strip().rpartition("\n")[2])
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
