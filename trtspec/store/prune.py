"""Removes from a store what nobody needs, while others push and pull."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from time import monotonic

from trtspec.errors import StoreError
from trtspec.progress import Advance
from trtspec.store.entry import Entry
from trtspec.store.files import TEMPORARY, Stat
from trtspec.store.push import PRUNE_LIMIT
from trtspec.store.store import OBJECTS, PRUNING, PUSHING, THREADS, Store
from trtspec.threads import in_threads

_BATCH = 500
Remove = Callable[[Sequence[str], Advance], None]


@dataclass(frozen=True, slots=True)
class Rules:
    """Which entries go: those older than `older_than`, but never the newest `keep` of one name, role and
    platform.

    Without either none goes. What a push left that was killed goes after `grace`.
    """

    older_than: timedelta | None
    keep: int | None
    grace: timedelta


@dataclass(frozen=True, slots=True)
class Prune:
    """What goes: entries, and other files by name, of `size` bytes in all."""

    entries: tuple[Entry, ...]
    names: tuple[str, ...]
    size: int


def prune(store: Store, rules: Rules, advance: Advance, *, dry_run: bool) -> Prune:
    """Says what went, or what would; raises StoreError, also when it takes so long that a push may go on."""
    if dry_run:
        return _look(store, rules)
    with exclusively(store) as remove:
        found = _look(store, rules)
        remove([entry.document for entry in found.entries], advance)
        remove(found.names, advance)
    return found


def _look(store: Store, rules: Rules) -> Prune:
    # Objects first: what a push writes later is in no list, and what it wrote before it has announced.
    objects = store.files.find(OBJECTS)
    marks, temporary = store.files.find(PUSHING), store.files.find(TEMPORARY)
    now = datetime.now(timezone.utc)
    dead = _older(marks, now - rules.grace)
    pushed = [store.read_entry(mark) for mark in marks if mark not in dead]
    entries = store.entries()
    outdated = choose(entries, rules, now)
    kept = [*filter(None, pushed), *(entry for entry in entries if entry not in outdated)]
    needed = {chunk.name for entry in kept for chunk in entry.chunks}
    names = [*dead, *_older(temporary, now - rules.grace), *(name for name in objects if name not in needed)]
    stats = marks | temporary | objects
    return Prune(tuple(outdated), tuple(names), sum(stats[name].size for name in names))


def choose(entries: Iterable[Entry], rules: Rules, now: datetime) -> list[Entry]:
    """The entries that go, of those given with the newest first."""
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
    """Gives what removes files by name. Pushes that begin meanwhile wait, as long as it shows life."""
    mark, start = f"{PRUNING}/{uuid.uuid4().hex}", monotonic()
    store.files.write(mark, b"")

    def remove(names: Sequence[str], advance: Advance) -> None:
        nonlocal start
        for first in range(0, len(names), _BATCH):
            if monotonic() - start > PRUNE_LIMIT.total_seconds() / 2:
                problem = "it took so long to look at this store that a push may have begun"
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
