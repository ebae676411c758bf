"""Reads everything that the entries of a store need, and reports what is missing or not as it was written."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.errors import CorruptedError
from trtspec.findings import Finding
from trtspec.progress import Progress
from trtspec.store.entry import Chunk, Entry
from trtspec.store.prune import exclusively
from trtspec.store.store import ENTRIES, PUSHING, THREADS, Store
from trtspec.threads import in_threads


@dataclass(frozen=True, slots=True)
class Verified:
    """The entries that can be read, the bytes of the chunks that they need, and what is wrong with files."""

    entries: tuple[Entry, ...]
    size: int
    findings: tuple[Finding, ...]

    def damaged(self) -> list[Entry]:
        """The entries that cannot be pulled."""
        names = {finding.subject for finding in self.findings}
        return [entry for entry in self.entries if any(chunk.name in names for chunk in entry.chunks)]


def verify(store: Store, watch: Progress) -> Verified:
    """Reads every entry and chunk of a store; raises StoreError if the store cannot be read at all."""
    findings: list[Finding] = []
    entries = []
    for name in [*store.files.find(ENTRIES), *store.files.find(PUSHING)]:
        try:
            entry = store.read_entry(name)
        except CorruptedError as error:
            findings.append(Finding(name, error.problem))
            continue
        if entry and name == entry.document:
            entries.append(entry)
    chunks = {chunk for entry in entries for chunk in entry.chunks}
    size = sum(chunk.size for chunk in chunks)

    def read(chunk: Chunk) -> int:
        try:
            store.read_chunk(chunk)
        except CorruptedError as error:
            findings.append(Finding(chunk.name, error.problem))
        return chunk.size

    with watch(f"read {store}", size) as advance:
        in_threads(read, chunks, advance, THREADS)
    return Verified(tuple(entries), size, tuple(findings))


def drop(store: Store, found: Verified) -> None:
    """Removes what is corrupted and the entries that need it; a push or a build brings them back."""
    with exclusively(store) as remove:
        remove([entry.document for entry in found.damaged()], lambda *_: None)
        remove([finding.subject for finding in found.findings], lambda *_: None)
