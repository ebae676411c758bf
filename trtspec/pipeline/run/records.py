"""The records of the steps done in a build directory, the digests of files, and what is still to be done.

A digest is kept, so that a file that has not changed is not read again, and sources are watched.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trtspec.base.digest import digest_of
from trtspec.base.errors import ChangedError
from trtspec.base.files import write_atomically
from trtspec.base.progress import Advance, Progress, no_progress
from trtspec.models.download import located
from trtspec.models.source import Stamp, key_of, open_file, stamp_of
from trtspec.pipeline.run.step import Digested, Step

CHUNK = 4 << 20
LARGE = 1 << 30
_AGAIN = "wait until nothing writes to it, and run the same command again"


class FileDigests:
    """Keeps digests in a small file, by device, inode, size and modification time.

    Two hard links are one file. Files of a gigabyte or more, together, are read under `watch`. `sources` are
    the files that a plan has read, as they were before; one that was not there is to stay away. `trusted` is
    as for `located`.
    """

    def __init__(
        self,
        store: Path,
        watch: Progress,
        sources: Mapping[Path, Stamp | None] | None = None,
        trusted: Collection[Path] = (),
    ) -> None:
        self._store, self._watch, self._trusted = store, watch, trusted
        self._known: dict[str, str] = _read(store)
        self._sources = dict(sources or {})

    def note(self, files: Iterable[Path]) -> None:
        """Notes the sources of a build before they are read; a file that is not there is to stay away."""
        self._sources |= {file: stamp_of(file) for file in files if file not in self._sources}

    def check(self) -> None:
        """Raises ChangedError for a source that was replaced, written, added or removed since it was noted.

        A file of which only the status has changed, such as the number of its links, is read again.
        """
        for file, noted in self._sources.items():
            now = stamp_of(file)
            is_same = now == noted or (now and noted and now[0] == noted[0] and self._is_known(file, now[0]))
            if not is_same:
                raise ChangedError(file, "has changed since this build began to read it", _AGAIN)
            self._sources[file] = now

    def _is_known(self, file: Path, key: str) -> bool:
        return key not in self._known or self._known[key] == _sha256(file, key, lambda *_: None)

    def of(self, file: Path) -> str:
        """Returns the SHA-256 of a file in hexadecimal."""
        return self.of_all([file], file.name)[file]

    def of_all(self, files: Sequence[Path], name: str) -> dict[Path, str]:
        """Returns the SHA-256 of each file; `name` tells who watches what they are."""
        stats = {file: file.stat() for file in files}
        keys = {file: key_of(stat) for file, stat in stats.items()}
        unread = {file: key for file, key in keys.items() if key not in self._known}
        size = sum(stats[file].st_size for file in unread)
        watch = self._watch if size >= LARGE else no_progress
        with watch(f"read {name}", size) as advance:
            for file, key in unread.items():
                self._known[key] = _sha256(file, key, advance)
        return {file: self._known[key] for file, key in keys.items()}

    def of_step(self, step: Step) -> str:
        """Returns the digest of all that a step's output depends on."""
        made_of = self.filled(step.made_of, step.inputs[0] if step.inputs else step.name)
        return digest_of(made_of)

    def of_steps(self, steps: Iterable[Step]) -> dict[str, str]:
        """Returns the digests of those steps that make something, by their names."""
        return {step.name: self.of_step(step) for step in steps if step.output}

    def filled(self, data: Any, name: str) -> Any:
        """Returns data of JSON as in `Step.made_of`, with the digests in it.

        `name` is as for `of_all`.
        """
        files = files_in(data)
        places, known = located(files, self._trusted)
        unknown = [place for place in places.values() if place not in known]
        self.note(unknown)
        known |= self.of_all(unknown, name)

        def plain(part: Any) -> str:
            return digest_of(_plain(part.of, plain)) if isinstance(part, Digested) else known[places[part]]

        return _plain(data, plain)

    def of_tree(self, path: Path) -> dict[str, str]:
        """Returns the digests of a file or of all files in a folder, by paths that begin with its own name.

        There are none where `path` does not exist.
        """
        if not path.is_dir():
            return {path.name: self.of(path)} if path.exists() else {}
        # A server that has run leaves Python's compiled files, which no step has made.
        files = (file for file in path.rglob("*") if file.is_file() and file.parent.name != "__pycache__")
        return {file.relative_to(path.parent).as_posix(): self.of(file) for file in sorted(files)}

    def learn(self, store: Path) -> None:
        """Adds what another build directory's file of digests has."""
        self._known |= _read(store)

    def save(self) -> None:
        write_atomically(self._store, json.dumps(self._known, indent=0))


def _plain(data: Any, default: Callable[[Any], Any]) -> Any:
    return json.loads(json.dumps(data, default=default))


def files_in(data: Any) -> list[Path]:
    """Returns the files whose paths are in what a step is made of."""
    found = list[Path]()
    _plain(data, lambda part: part.of if isinstance(part, Digested) else found.append(part))
    return found


def _read(store: Path) -> dict[str, str]:
    try:
        known = json.loads(store.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _sha256(file: Path, key: str, advance: Advance) -> str:
    """Reads the file of this key; raises ChangedError if another is there, or it was written meanwhile."""
    sha = hashlib.sha256()
    with open_file(file) as stream:
        while chunk := stream.read(CHUNK):
            sha.update(chunk)
            advance(len(chunk))
        if key_of(os.fstat(stream.fileno())) != key:
            raise ChangedError(file, "changed while it was read", _AGAIN)
    return sha.hexdigest()


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

    @property
    def made(self) -> str:
        """One digest for all that it made."""
        return digest_of(dict(self.files))


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
        is_other = record is None or unread_digest(step) not in (None, record.digest)
        if is_other or (step.output is not None and not (build / step.output).exists()):
            names.add(step.name)
    return _with_later(steps, names)


def unread_digest(step: Step) -> str | None:
    """Returns the digest of a step that depends on no file; None for one that does."""
    return None if files_in(step.made_of) else digest_of(step.made_of)


def _with_later(steps: Sequence[Step], names: set[str]) -> set[str]:
    """Adds the names of the steps that come after one of these, and returns all."""
    for step in steps:
        if names.intersection(step.after):
            names.add(step.name)
    return names


def is_done(step: Step, records: dict[str, Record], build: Path, digests: FileDigests) -> bool:
    """Says whether the output is there unchanged, and was made from the same inputs as it would be now."""
    record = records.get(step.name)
    return (
        record is not None
        and record.inputs == inputs_of(step, records)
        and record.digest == digests.of_step(step)
        and record.files == files_of(step, build, digests)
    )


def inputs_of(step: Step, records: dict[str, Record]) -> dict[str, str]:
    """Returns one digest for the files of each step that this one comes after."""
    return {name: records[name].made for name in step.after if name in records}


def files_of(step: Step, build: Path, digests: FileDigests) -> dict[str, str]:
    """Returns the digests of the files that the step made, by their paths in the build directory."""
    if step.output is None:
        return {}
    parent = PurePosixPath(step.output).parent
    return {str(parent / name): digest for name, digest in digests.of_tree(build / step.output).items()}
