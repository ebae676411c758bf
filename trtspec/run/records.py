"""The records of what was done in a build directory, so that it is not done again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from trtspec.atomic import write_atomically

FOLDER = ".trtspec"
FILE = f"{FOLDER}/steps.json"


@dataclass(frozen=True, slots=True)
class Record:
    """A step that was done: its digest, its inputs, the files that it made, and the seconds that it took.

    `inputs` has one digest for the files of each step that it comes after. `files` has the SHA-256 of each
    file, by its path in the build directory.
    """

    digest: str
    inputs: Mapping[str, str]
    files: Mapping[str, str]
    seconds: float


def read_records(build: Path) -> dict[str, Record]:
    """Returns the records by the names of the steps; none if their file is missing or damaged."""
    try:
        content = json.loads((build / FILE).read_text(encoding="utf-8"))
        return {name: Record(**record) for name, record in content.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}


def write_records(build: Path, records: Mapping[str, Record]) -> None:
    content = {name: asdict(record) for name, record in records.items()}
    write_atomically(build / FILE, json.dumps(content, indent=2) + "\n")


def has_records(build: Path) -> bool:
    return (build / FILE).is_file()
