"""A store of engines: nothing in it is ever changed, and every name is the SHA-256 of the content.

    objects/sha256/ab/abcd…                    a chunk of a file
    entries/<platform>/<key>/<sha256>.json     what is in an engine, written when all its chunks are there
    pushing/<sha256>.json                      the entry of a push that runs, or was killed
    pruning/<id>                               the mark of a prune that runs, or was killed
    building/<platform>/<key>/<number>.json    the lease of who builds an engine (`lease.py`)

Readers compare content and name, so they never use a half-written or corrupted file. Files of other names are
not the store's, and nothing reads or removes them.
"""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import PurePosixPath

from trtspec.base.errors import CorruptedError, StoreError
from trtspec.base.threads import in_threads
from trtspec.pipeline.store.address import StoreAddress
from trtspec.pipeline.store.entry import Chunk, Entry, Platform, entries_of, from_bytes
from trtspec.pipeline.store.files import TEMPORARY, Files, Stat

ENTRIES, OBJECTS, PUSHING, PRUNING = "entries", "objects", "pushing", "pruning"
BUILDING = "building"
THREADS = 8  # not limited by processors: a request mostly waits for the network
_OTHER = "its content does not match its name"
_SHORTEST = 6
_OWN = re.compile(
    rf"{OBJECTS}/sha256/([0-9a-f]{{2}})/\1[0-9a-f]{{62}}|{ENTRIES}/[^/]+/[^/]+/[0-9a-f]{{64}}\.json"
    rf"|{PUSHING}/[0-9a-f]{{64}}\.json|{BUILDING}/[^/]+/[^/]+/\d+(-[0-9a-f]{{32}})?\.json|{TEMPORARY}/[0-9a-f]{{32}}"
)


class Store:
    """A store for readers; `transfer.py` and `upkeep.py` write.

    Every method raises StoreError if the store cannot be read.
    """

    def __init__(self, url: str) -> None:
        self.address = StoreAddress(url)
        self.files = Files(self.address)

    def __str__(self) -> str:
        return str(self.address)

    def __repr__(self) -> str:
        return f"<Store {self}>"

    def require(self) -> None:
        """Raises StoreError for a folder of this machine that is not there: a push makes one.

        Elsewhere a store that is empty cannot be told from one that nobody has pushed to yet.
        """
        if not self.files.has_root():
            raise StoreError(str(self), "there is no such folder", "trtspec store push URL RECIPE makes one")

    def find(self, platform: Platform, key: str) -> Entry | None:
        """The entry of a key, the first if several builders made one, or None; raises CorruptedError."""
        found = self._read_all(entries_of(platform, key))
        return min(found, key=lambda entry: (entry.created, entry.digest), default=None)

    def own(self, folder: str) -> dict[str, Stat]:
        """The files below a folder that are the store's by their names."""
        return {name: stat for name, stat in self.files.find(folder).items() if _OWN.fullmatch(name)}

    def entries(self) -> list[Entry]:
        """Every entry, the newest first; raises CorruptedError."""
        return sorted(self._read_all(ENTRIES), key=lambda entry: (entry.created, entry.digest), reverse=True)

    def read_entry(self, name: str) -> Entry | None:
        """An entry by the name of its document, None if it is gone; raises CorruptedError."""
        content = self.files.read(name)
        if content is None:
            return None
        if sha256(content).hexdigest() != PurePosixPath(name).stem:
            raise self._corrupted(name, _OTHER)
        try:
            entry = from_bytes(content)
        except ValueError as error:
            raise self._corrupted(name, str(error)) from error
        if name not in (entry.document, f"{PUSHING}/{entry.digest}.json"):
            raise self._corrupted(name, "it is an entry of another platform or key")
        return entry

    def read_chunk(self, chunk: Chunk) -> bytes:
        """The content of a chunk; raises CorruptedError if it is gone or not what its name says."""
        content = self.files.read(chunk.name)
        if content is None:
            raise self._corrupted(chunk.name, "it is gone")
        if len(content) != chunk.size:
            raise self._corrupted(chunk.name, f"it has {len(content)} of {chunk.size} bytes")
        if sha256(content).hexdigest() != chunk.sha256:
            raise self._corrupted(chunk.name, _OTHER)
        return content

    def _read_all(self, folder: str) -> list[Entry]:
        found: list[Entry] = []

        def read(name: str) -> int:
            if entry := self.read_entry(name):
                found.append(entry)
            return 0

        in_threads(read, self.own(folder), lambda _: None, THREADS)
        return found

    def _corrupted(self, name: str, problem: str) -> CorruptedError:
        repair = f"trtspec store verify {self} --remove, then push or build what needs it again"
        return CorruptedError(str(self), f"{name} is corrupted: {problem}", repair)


def find_entry(store: Store, name: str) -> Entry:
    """The newest build of the recipe `name`, or the entry whose digest begins with it; raises StoreError."""
    entries = store.entries()
    pairs = [entry for entry in entries if entry.role == "pair" and entry.name == name]
    if pairs:
        return pairs[0]
    found = [entry for entry in entries if len(name) >= _SHORTEST and entry.digest.startswith(name)]
    if len(found) > 1:
        raise StoreError(str(store), f"{len(found)} digests begin with {name}", "give more digits of it")
    if not found:
        problem = f"has no build {name!r:.80}, and no entry whose digest begins with it"
        raise StoreError(str(store), problem, "trtspec store list URL shows what is there")
    return found[0]
