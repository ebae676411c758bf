"""Removes from a store what nobody needs, even while others push and pull, and verifies the rest."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from time import monotonic

from trtspec.base.errors import CorruptedError, StoreError
from trtspec.base.findings import Finding
from trtspec.base.progress import Advance, Progress
from trtspec.base.threads import in_threads
from trtspec.pipeline.store.files import TEMPORARY, Stat
from trtspec.pipeline.store.store import (
    BUILDING,
    ENTRIES,
    OBJECTS,
    PRUNING,
    PUSHING,
    THREADS,
    Chunk,
    Entry,
    Store,
)
from trtspec.pipeline.store.transfer import LIMIT, living

_BATCH = 500
Remove = Callable[[Sequence[str], Advance], None]


@dataclass(frozen=True, slots=True)
class PruneRules:
    """The rules by which entries are removed.

    A kind is a name, a role and a platform. Without `older_than` and `keep` no entry is removed.
    """

    older_than: timedelta | None
    """The age from which on entries are removed. With None age does not matter."""
    keep: int | None
    """The number of newest entries of each kind that stay, whatever their age."""
    grace: timedelta
    """The age from which on the rest of a killed push or build is removed."""


@dataclass(frozen=True, slots=True)
class Prune:
    """The files to remove from a store."""

    entries: tuple[Entry, ...]
    """The entries to remove."""
    names: tuple[str, ...]
    """The names of other files to remove."""
    size: int
    """The bytes of the files in `names`."""


def prune(store: Store, rules: PruneRules, advance: Advance, *, dry_run: bool) -> Prune:
    """Removes what the rules say, unless it is a `dry_run`, and returns what that is.

    Raises StoreError, also if it takes so long that a push may have stopped waiting for it.
    """
    if dry_run:
        return _look(store, rules)
    with exclusively(store) as remove:
        found = _look(store, rules)
        remove([entry.document for entry in found.entries], advance)
        remove(found.names, advance)
    return found


def _look(store: Store, rules: PruneRules) -> Prune:
    # Objects first: what a push writes later is not in the list, and what it wrote before has its mark.
    objects = store.own(OBJECTS)
    marks, temporary = store.own(PUSHING), store.own(TEMPORARY)
    # Who builds renews the lease, so that one of this age was left.
    left = temporary | store.own(BUILDING)
    now = datetime.now(timezone.utc)
    dead = _older(marks, now - rules.grace)
    pushed = [store.read_entry(mark) for mark in marks if mark not in dead]
    entries = store.entries()
    outdated = choose(entries, rules, now)
    kept = [*filter(None, pushed), *(entry for entry in entries if entry not in outdated)]
    needed = {chunk.name for entry in kept for chunk in entry.chunks}
    names = [*dead, *_older(left, now - rules.grace), *(name for name in objects if name not in needed)]
    stats = marks | left | objects
    return Prune(tuple(outdated), tuple(names), sum(stats[name].size for name in names))


def choose(entries: Iterable[Entry], rules: PruneRules, now: datetime) -> list[Entry]:
    """The entries to remove; `entries` are given with the newest first."""
    seen: dict[tuple[object, ...], int] = {}
    chosen = []
    for entry in entries:
        kind = (entry.name, entry.role, entry.platform)
        seen[kind] = seen.get(kind, 0) + 1
        old = rules.older_than is None or now - datetime.fromisoformat(entry.created) > rules.older_than
        if old and (rules.older_than, rules.keep) != (None, None) and seen[kind] > (rules.keep or 0):
            chosen.append(entry)
    return chosen


def _older(files: Mapping[str, Stat], than: datetime) -> list[str]:
    return [name for name, stat in files.items() if stat.modified and stat.modified < than]


@contextmanager
def exclusively(store: Store) -> Iterator[Remove]:
    """Gives a function that removes files by name. Pushes that begin within this context wait for its end.

    The function renews the mark for which they wait, and raises StoreError if that may have come too late.
    """
    mark, start = f"{PRUNING}/{uuid.uuid4().hex}", monotonic()
    store.files.write(mark, b"")

    def remove(names: Sequence[str], advance: Advance) -> None:
        nonlocal start
        for first in range(0, len(names), _BATCH):
            if monotonic() - start > LIMIT.total_seconds() / 2:
                problem = "listing this store took so long that a push may have started"
                raise StoreError(str(store), problem, "run the same command again; nothing is lost")
            store.files.write(mark, b"")
            start = monotonic()
            in_threads(partial(_remove, store), names[first : first + _BATCH], advance, THREADS)

    try:
        yield remove
    finally:
        store.files.remove([mark])


def _remove(store: Store, name: str) -> int:
    store.files.remove([name])
    return 1


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
    for name in [*store.own(ENTRIES), *store.own(PUSHING)]:
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
