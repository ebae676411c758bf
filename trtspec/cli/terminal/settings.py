"""The settings file of a person: defaults for every command, which options and variables override."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.base.errors import UnavailableError
from trtspec.base.findings import Finding, ok

if TYPE_CHECKING:
    from trtspec.recipe.yaml_reader import Document

VARIABLES = {
    "backend": "TRTSPEC_BACKEND",
    "output": "TRTSPEC_OUTPUT",
    "store": "TRTSPEC_STORE",
    "containers": "TRTSPEC_CONTAINERS",
}
"""The keys, and the variables whose defaults they are."""


def settings_file() -> Path:
    # A container's user may have no home, for which `Path.home` raises an error.
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "trtspec/config.yaml")


def apply_settings(environment: MutableMapping[str, str]) -> None:
    """Sets the variables that the file has and the environment lacks.

    Raises UnavailableError for the first fault of the file.
    """
    file = settings_file()
    try:
        data = file.read_bytes()
    except OSError:
        return
    if all(line.lstrip().startswith(b"#") or not line.strip() for line in data.splitlines()):
        return
    # The reader of YAML takes 30 ms to import, and few have a file.
    from trtspec.recipe.yaml_reader import Document, Unreadable, read

    try:
        document = read(data)
    except Unreadable as error:
        document = Document(findings=list(error.findings))
    for fault in (*document.findings, *_faults(document)):
        words = f"{fault.subject}: {fault.problem}" if fault.subject else fault.problem
        raise UnavailableError(f"{file}:{fault.line}" if fault.line else file, words, fault.repair)
    for key, value in document.values.items():
        environment.setdefault(VARIABLES[key], os.path.expanduser(value) if key == "output" else value)


def _faults(document: Document) -> Iterator[Finding]:
    from trtspec.recipe.backends import NAMES

    allowed = {"backend": NAMES, "containers": ("docker", "podman")}
    for key, value in document.values.items():
        line, near = document.lines.get(key), get_close_matches(key, VARIABLES, n=1)
        known = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(VARIABLES)}"
        if key not in VARIABLES:
            yield Finding(key, "unknown key", known, line=line)
        elif not isinstance(value, str) or not value or value not in allowed.get(key, (value,)):
            shown = repr(value) if isinstance(value, str) else "a value that is not text"
            repair = f"write {', '.join(allowed.get(key, ('text',)))}"
            yield Finding(key, f"{shown} is not allowed", repair, line=line)
        elif key == "output" and "{name}" not in value:
            repair = f"{value.rstrip('/')}/{{name}}"
            yield Finding(key, "is one folder for the builds of all recipes", repair, line=line)


def found_settings() -> Finding:
    """Returns what `doctor` says of the file, and the values that apply after it was read."""
    from trtspec.pipeline.store.files import StoreAddress

    found, file = {key: os.environ.get(name) for key, name in VARIABLES.items()}, settings_file()
    if found["store"]:
        found["store"] = str(StoreAddress(found["store"]))  # without its password
    values = [f"{key}: {value}" for key, value in found.items() if value]
    return ok(
        "settings", f"{', '.join(values) or 'none'} ({file}{'' if file.is_file() else ' is not there'})"
    )
