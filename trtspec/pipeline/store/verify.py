"""Reads everything that the entries of a store need, and reports what is missing or changed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from trtspec.base.errors import CorruptedError
from trtspec.base.findings import Finding
from trtspec.base.progress import Advance, Progress
from trtspec.base.threads import in_threads
from trtspec.pipeline.store.entry import Chunk, Entry
from trtspec.pipeline.store.prune import exclusively
from trtspec.pipeline.store.push import living
from trtspec.pipeline.store.store import ENTRIES, PUSHING, THREADS, Store


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of reading every entry and chunk of a store."""

    entries: tuple[Entry, ...]
    """The entries that can be read."""
    size: int
    """The bytes of the chunks that the entries need."""
    findings: tuple[Finding, ...]
    """The problems of files."""

    def damaged(self) -> list[Entry]:
        """The entries that cannot be pulled."""
        names = {finding.subject for finding in self.findings}
        return [entry for entry in self.entries if any(chunk.name in names for chunk in entry.chunks)]


def verify(store: Store, watch: Progress) -> Verified:
    """Reads every entry and chunk of a store; raises StoreError if the store cannot be read at all."""
    entries, findings = _read_entries(store)
    chunks = {chunk for entry in entries for chunk in entry.chunks}
    size = sum(chunk.size for chunk in chunks)
    with watch(f"read {store}", size) as advance:
        findings += _read_chunks(store, chunks, advance)
    return Verified(tuple(entries), size, tuple(findings))


def drop(store: Store, found: Verified) -> None:
    """Removes what still has the `found` problem, and the entries that need it.

    A push or a build brings them back. A chunk that somebody pushes now is left to that push.
    """
    names = {finding.subject for finding in found.findings}
    with exclusively(store) as remove:
        # Marks first: a push that has ended since then has its entry among those that are read.
        pushed = _pushed_now(store)
        entries, findings = _read_entries(store)
        needed = {chunk for entry in entries for chunk in entry.chunks}
        doubtful = [chunk for chunk in needed - pushed if chunk.name in names]
        findings = [finding for finding in findings if finding.subject in names]
        findings += _read_chunks(store, doubtful, lambda *_: None)
        still = Verified(tuple(entries), 0, tuple(findings))
        remove([entry.document for entry in still.damaged()], lambda *_: None)
        remove([finding.subject for finding in still.findings], lambda *_: None)


def _pushed_now(store: Store) -> set[Chunk]:
    """The chunks of the running pushes."""
    chunks = set[Chunk]()
    for mark in living(store, PUSHING):
        with suppress(CorruptedError):
            if entry := store.read_entry(mark):
                chunks |= entry.chunks
    return chunks


def _read_entries(store: Store) -> tuple[list[Entry], list[Finding]]:
    """The entries that can be read, and what is wrong with other documents and with the marks of pushes."""
    entries, findings = list[Entry](), list[Finding]()
    for name in [*store.files.find(ENTRIES), *store.files.find(PUSHING)]:
        try:
            entry = store.read_entry(name)
        except CorruptedError as error:
            findings.append(Finding(name, error.problem))
            continue
        if entry and name == entry.document:
            entries.append(entry)
    return entries, findings


def _read_chunks(store: Store, chunks: Iterable[Chunk], advance: Advance) -> list[Finding]:
    """Returns findings about chunks that are missing or changed."""
    findings = list[Finding]()

    def read(chunk: Chunk) -> int:
        try:
            store.read_chunk(chunk)
        except CorruptedError as error:
            findings.append(Finding(chunk.name, error.problem))
        return chunk.size

    in_threads(read, chunks, advance, THREADS)
    return findings
