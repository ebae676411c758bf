"""Writes the file for a bug report: outcomes, configurations, logs and versions, without secrets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from trtspec.base.atomic import publish, remove, temporary
from trtspec.base.environment import is_secret

_NAMES = ("*.yaml", "*.jsonl", "*.json", "*.log", "*.pbtxt")
_LEFT_OUT = {"tokenizer", "code", "checkpoint", "1"}
"""Folders that are left out: the pair's repository has their files, or they are weights."""
_MOST = 4 << 20
# Strangers read a bundle, so it hides more variables than servers do not get.
_SOUNDS_SECRET = re.compile(r"TOKEN|KEY", re.IGNORECASE)
_HEADERS = re.compile(r"(trtspec-key[:=]|authorization:\s*bearer\s+|hf_)[\w.\-]+", re.IGNORECASE)


def write_bundle(path: Path, folder: Path, result: Mapping[str, Any]) -> None:
    """Writes the zip atomically; raises OSError.

    It contains `result` and every small text file of the self-test's folder. In all of them it replaces
    values of variables with secret-sounding names, keys of servers, and this user's home.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    made = temporary(path)
    try:
        with ZipFile(made, "w", ZIP_DEFLATED) as bundle:
            bundle.writestr("selftest.json", without_secrets(json.dumps(result, indent=2)))
            for file in _files(folder):
                text = file.read_text(encoding="utf-8", errors="replace")[-_MOST:]
                bundle.writestr(str(file.relative_to(folder)), without_secrets(text))
        publish(made, path)
    finally:
        remove(made)


def without_secrets(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the text with secrets and this user's home replaced."""
    for name, value in environment.items():
        if len(value) >= 8 and (_SOUNDS_SECRET.search(name) or is_secret(name, value)):
            text = text.replace(value, f"<{name}>")
    text = _HEADERS.sub(lambda found: f"{found[1]}<hidden>", text)
    home = environment.get("HOME", "")
    return text.replace(home, "~") if len(home) > 1 else text


def _files(folder: Path) -> Iterator[Path]:
    for name in _NAMES:
        for file in sorted(folder.rglob(name)):
            if not _LEFT_OUT & set(file.relative_to(folder).parts):
                yield file
