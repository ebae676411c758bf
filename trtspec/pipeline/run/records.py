"""The records of the steps done in a build directory, and what is still to be done by them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from trtspec.base.atomic import write_atomically
from trtspec.base.digest import digest_of
from trtspec.pipeline.run.digests import FileDigests
from trtspec.pipeline.run.step import Step

FOLDER = ".trtspec"
FILE = f"{FOLDER}/steps.json"


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a step that was done."""

    digest: str
    inputs: Mapping[str, str]
    """One digest for the files of each step that it comes after."""
    files: Mapping[str, str]
    """The SHA-256 of each file that it made, by its path in the build directory."""
    seconds: float
    """The time that it took."""


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


def pending(steps: Sequence[Step], build: Path, digests: FileDigests) -> set[str]:
    """Returns the names of the steps that a run would not skip; writes nothing."""
    records = read_records(build)
    return _with_later(steps, {step.name for step in steps if not is_done(step, records, build, digests)})


def unrecorded(steps: Sequence[Step], build: Path) -> set[str]:
    """Returns the names of the steps that a run would not skip, without reading files.

    Such a step has no record, or one of something else, or no output, or comes after such a step.
    """
    records, names = read_records(build), set[str]()
    for step in steps:
        record = records.get(step.name)
        is_other = record is None or step.digest not in (None, record.digest)
        if is_other or (step.output is not None and not (build / step.output).exists()):
            names.add(step.name)
    return _with_later(steps, names)


def _with_later(steps: Sequence[Step], names: set[str]) -> set[str]:
    """Adds the names of the steps that come after one of these, and returns all."""
    for step in steps:
        if names.intersection(step.after):
            names.add(step.name)
    return names


def is_done(step: Step, records: dict[str, Record], build: Path, digests: FileDigests) -> bool:
    """Says whether the output is there unchanged, and was made from the same inputs as it would be now."""
    record = records.get(step.name)
    if record is None or step.digest is None or record.digest != step.digest:
        return False
    return record.inputs == inputs_of(step, records) and record.files == files_of(step, build, digests)


def inputs_of(step: Step, records: dict[str, Record]) -> dict[str, str]:
    """Returns one digest for the files of each step that this one comes after."""
    return {name: digest_of(dict(records[name].files)) for name in step.after if name in records}


def files_of(step: Step, build: Path, digests: FileDigests) -> dict[str, str]:
    """Returns the digests of the files that the step made, by their paths in the build directory."""
    if step.output is None:
        return {}
    parent = PurePosixPath(step.output).parent
    return {str(parent / name): digest for name, digest in digests.of_tree(build / step.output).items()}
