"""The lease of who builds an engine, so that two builders of the same one do the work once.

A lease is a small document in a folder of its engine. Who wants to build writes the next number, once the one
before is released or has expired. Where the file system creates a file only if it is not there (S3's
`If-None-Match: *`, Google's `ifGenerationMatch=0`, Azure's, a folder's `O_EXCL`), one of all who try gets it.
Elsewhere each writes a name of its own, waits for `SETTLE_S`, and the first name wins; who needed more than
half of that from the look to the end of the write withdraws. So no clocks are compared and no delay matters,
if a listing shows what was written before it. Numbers do not go back while somebody may be between look and
write: a lease is removed when its engine is stored, and marked when it is given up.

A thread of the builder renews the lease, which has expired when it did not change for `expiry_s`. Those who
wait measure that with their own steady clock; on object stores a newcomer sees it at once, by the times that
the store itself has written. So the clocks of machines may be set as they like. What a lease cannot do: a
builder that slept past its expiry (suspended, or without a network) finds out at its next renewal. Until then
two build; the store keeps both engines, and every reader takes the same one.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from threading import Event, Thread

from pydantic import TypeAdapter

from trtspec.base.errors import StoreError
from trtspec.base.progress import Advance, Progress
from trtspec.pipeline.store.files import Stat
from trtspec.pipeline.store.store import BUILDING, Platform, Store

EXPIRY_S = 120.0  # NFS may hold back for 60 s what others have written
RENEWAL_S = 20.0
SETTLE_S = 10.0
POLL_S = 5.0
SCHEMA = 1
_NAME = re.compile(r"(\d+)(-[0-9a-f]+)?\.json")


@dataclass(frozen=True, slots=True)
class Builder:
    """The content of a lease."""

    what: str
    expiry_s: float
    """A lease that is not renewed for so many seconds is nobody's."""
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=os.getpid)
    since: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    """The time in ISO 8601 by the builder's own clock, for people."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    note: str = ""
    """The work that is done now."""
    beat: int = 0
    """Each renewal has another number here."""
    released: bool = False
    """True if the builder gave up."""

    def __str__(self) -> str:
        doing = f" ({self.note})" if self.note else ""
        return f"{self.host}, process {self.process}, builds it since {self.since}{doing}"


_BUILDER = TypeAdapter(Builder)


def to_bytes(builder: Builder) -> bytes:
    return json.dumps({"schema": SCHEMA, **asdict(builder)}, sort_keys=True).encode()


def from_bytes(content: bytes) -> Builder | None:
    """Reads a lease; None if it is half-written, or of another version of trtspec."""
    try:
        values = json.loads(content)
        return _BUILDER.validate_python(values) if values["schema"] == SCHEMA else None
    except (LookupError, RecursionError, TypeError, ValueError):
        return None


class StoreLease:
    """A lease that this process holds. Within its context a thread renews it; at the end it is given back."""

    def __init__(self, store: Store, name: str, builder: Builder) -> None:
        self._store, self._name, self._builder = store, name, builder
        self._folder, self._note = name.rpartition("/")[0], ""
        self._ends, self._thread = Event(), Thread(target=self._renew, name="lease", daemon=True)
        self.is_lost = False
        """Whether another builder took over, since this process did not renew the lease in time."""

    def tell(self, note: str) -> None:
        """Says what is done now; those who wait see it after the next renewal."""
        self._note = note

    def __enter__(self) -> StoreLease:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        if self.is_lost:
            return
        with suppress(StoreError):  # It expires; what was built is not worth less for that.
            if kind is None:
                self._store.files.remove(self._store.files.find(self._folder))
            else:
                self._write(released=True)

    def _renew(self) -> None:
        while not self._ends.wait(RENEWAL_S):
            with suppress(StoreError):  # The next renewal may succeed before the lease expires.
                if max(map(_number, self._store.files.find(self._folder)), default=0) > _number(self._name):
                    self.is_lost = True
                    return
                self._write()

    def _write(self, *, released: bool = False) -> None:
        beat = self._builder.beat + 1
        self._builder = replace(self._builder, note=self._note, beat=beat, released=released)
        self._store.files.write(self._name, to_bytes(self._builder))


@contextmanager
def leased(
    store: Store, platform: Platform, key: str, what: str, watch: Progress
) -> Iterator[StoreLease | None]:
    """Waits until nobody else builds the engine, and yields the lease of it; None once the store has it.

    Raises StoreError if the store cannot be read or written.
    """
    lease = _wait(store, platform, key, what, watch)
    if lease is None:
        yield None
        return
    with lease:
        # Whoever built it may have stored it since the last look.
        yield None if store.find(platform, key) else lease


def builders(store: Store) -> list[Builder]:
    """Returns who builds engines for the store now.

    In a folder, a killed builder is among them until another takes over: only a lease that stays unchanged
    would show it, and this function does not wait for that.
    """
    folders = {name.rpartition("/")[0] for name in store.files.find(BUILDING)}
    found = [_Leases(store, folder).look()[1] for folder in sorted(folders)]
    return [builder for builder in found if builder]


def _wait(store: Store, platform: Platform, key: str, what: str, watch: Progress) -> StoreLease | None:
    leases = _Leases(store, f"{BUILDING}/{platform.folder}/{key}")
    advance: Advance | None = None
    with ExitStack() as shown:
        while not store.find(platform, key):
            looked = time.monotonic()
            number, builder = leases.look()
            if builder is None:
                mine = Builder(what, EXPIRY_S)
                if name := leases.take(number + 1, mine, looked):
                    return StoreLease(store, name, mine)
                number, builder = leases.look()
            advance = advance or shown.enter_context(watch(f"wait for {what}", None))
            advance(0, str(builder or f"{store} answers too slowly for builders to agree on who builds"))
            time.sleep(POLL_S)
    return None


class _Leases:
    """The leases of one engine, as seen by a builder that waits for it."""

    def __init__(self, store: Store, folder: str) -> None:
        self._files, self._folder = store.files, folder
        self._seen: dict[str, tuple[bytes, float]] = {}

    def look(self) -> tuple[int, Builder | None]:
        """The newest number, 0 if there is none, and who builds under it, None if nobody does."""
        found = {name: stat for name, stat in self._files.find(self._folder).items() if _number(name)}
        number = max(map(_number, found), default=0)
        newest = sorted(name for name in found if _number(name) == number)
        builders = [self._living(name, found[name]) for name in newest]
        return number, next(filter(None, builders), None)

    def take(self, number: int, builder: Builder, looked: float) -> str | None:
        """Writes the lease of a number, and returns its name; None if another builder got it.

        `looked` is the time by the steady clock before it was seen that nobody builds.
        """
        alone, content = f"{self._folder}/{number:06}.json", to_bytes(builder)
        created = self._files.create(alone, content)
        if created is not None:
            return alone if created else None
        name = f"{self._folder}/{number:06}-{builder.id}.json"
        self._files.write(name, content)
        is_late = time.monotonic() - looked > SETTLE_S / 2
        if not is_late:
            time.sleep(SETTLE_S)
            found = self._files.find(self._folder)
            newest = max(map(_number, found), default=0)
            rivals = sorted(other for other in found if _number(other) == number)
            # One who could create a file alone did not wait, and has it.
            if newest == number and alone not in rivals and rivals[0] == name:
                return name
        self._files.remove([name])
        return None

    def _living(self, name: str, stat: Stat) -> Builder | None:
        """Returns the builder that holds a lease; None if it is released, expired or gone."""
        content = self._files.read(name)
        if content is None:
            return None
        builder = from_bytes(content) or Builder(name, EXPIRY_S, "an unknown machine", 0, "an unknown time")
        seen, now = self._seen.get(name), time.monotonic()
        if seen is None or seen[0] != content:
            self._seen[name] = content, now
        if seen is None:
            clock = self._files.now() if stat.modified else None
            age = (clock - stat.modified).total_seconds() if clock and stat.modified else 0.0
        else:
            age = now - self._seen[name][1]
        return None if builder.released or age > builder.expiry_s else builder


def _number(name: str) -> int:
    """The number of a lease by its name; 0 for what is none."""
    found = _NAME.fullmatch(name.rpartition("/")[2])
    return int(found[1]) if found else 0
