"""The disks that a build needs room on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk under a folder."""

    folder: Path
    """The folder, or the nearest one above it that is there."""
    device: int
    """The number that the system knows the disk by."""
    free: int
    """In bytes."""


def find_disk(folder: Path) -> Disk:
    """Looks at the disk that `folder`, which need not be there, is on or would be on."""
    found = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    return Disk(found, found.stat().st_dev, shutil.disk_usage(found).free)
