"""Copies of whole folders."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_tree(source: Path, target: Path, *ignored: str) -> None:
    """Copies a folder to `target`, in a new folder if need be, without names of the patterns `ignored`.

    Raises the OSError of the first file that cannot be copied, such as ENOSPC, where `shutil.copytree` goes
    on and then raises an error without a number.
    """
    target.mkdir(parents=True)
    for entry in sorted(source.iterdir()):
        if any(entry.match(pattern) for pattern in ignored):
            continue
        if entry.is_dir():
            copy_tree(entry, target / entry.name, *ignored)
        else:
            shutil.copy2(entry, target / entry.name)
    shutil.copystat(source, target)
