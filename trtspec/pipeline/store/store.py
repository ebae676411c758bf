"""A store of engines, and the entry that describes one of them, or a build that is ready to be served.

Nothing in a store is ever changed, and every name is the SHA-256 of the content.

    objects/sha256/ab/abcd…                    a chunk of a file
    entries/<platform>/<key>/<sha256>.json     what is in an engine, written when all its chunks are there
    pushing/<sha256>.json                      the entry of a push that runs, or was killed
    pruning/<id>                               the mark of a prune that runs, or was killed
    building/<platform>/<key>/<number>.json    the lease of who builds an engine (`lease.py`)

Readers compare content and name, so they never use a half-written or corrupted file. Files of other names are
not the store's, and nothing reads or removes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, StringConstraints, TypeAdapter, ValidationError

from trtspec.base.errors import CorruptedError, StoreError
from trtspec.base.threads import in_threads
from trtspec.pipeline.engine.directory import Runtime, base_version, fits_sm, fits_tensorrt
from trtspec.pipeline.store.files import TEMPORARY, Files, Stat, StoreAddress
from trtspec.recipe.gpus import GPUS
from trtspec.recipe.releases import Release


@dataclass(frozen=True, slots=True)
class Platform:
    """The requirements of an engine for the machine that loads it."""

    backend: str
    sm: int | None = None
    """The compute capability times ten; None for an engine that loads on any."""
    tensorrt: str | None = None
    """The version; None for an engine that loads on any."""
    tensorrt_llm: str | None = None
    """The version; None for an engine that loads on any."""

    def __str__(self) -> str:
        if self.sm is None:
            return self.backend
        return f"SM {self.sm}, TensorRT {self.tensorrt}, TensorRT-LLM {self.tensorrt_llm}"

    @property
    def folder(self) -> str:
        """The name of its folder in a store."""
        if self.sm is None:
            return self.backend
        return f"sm{self.sm}-tensorrt{self.tensorrt}-tensorrt_llm{self.tensorrt_llm}"

    def misfit(self, runtime: Runtime) -> str | None:
        """Returns why an engine of this platform does not load in `runtime`; None if nothing is known against
        it.
        """
        if self.sm is None:
            return None
        if runtime.sms and not any(fits_sm(self.sm, sm) for sm in runtime.sms):
            return f"it was built for SM {self.sm}, but this machine has SM {runtime.sms[0]}"
        llm, tensorrt = runtime.tensorrt_llm, runtime.tensorrt
        if llm and llm != self.tensorrt_llm:
            return f"it was built by TensorRT-LLM {self.tensorrt_llm}, but this machine has {llm}"
        if tensorrt and not fits_tensorrt(self.tensorrt, tensorrt):
            return f"it was built by TensorRT {self.tensorrt}, but this machine has {base_version(tensorrt)}"
        return None


def platform_of(gpu: str, release: Release | None, tensorrt: str | None = None) -> Platform:
    """The platform of a recipe's engines; `release` is None for an engine that loads on any.

    `tensorrt` is the version that builds; None stands for that of the release's image.
    """
    if release is None:
        return Platform("torch")
    version = base_version(tensorrt or release.tensorrt)
    return Platform("tensorrt_llm", GPUS[gpu].sm, version, release.version)


SCHEMA = 1
Content = Literal["target", "draft", "pair"]
"""`pair` is a build that is ready to be served, also one without a draft: the word is in documents."""


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if "\0" in path or not parts or path != "/".join(parts) or ".." in parts or path.startswith("/"):
        raise ValueError(f"{path!r:.80} is not a path in its folder")
    return path


Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
InnerPath = Annotated[str, AfterValidator(_inside)]


class Chunk(NamedTuple):
    """A piece of a file, which is one object of the store."""

    sha256: Sha256
    size: Annotated[int, Field(ge=0, strict=True)]
    """In bytes."""

    @property
    def name(self) -> str:
        return f"objects/sha256/{self.sha256[:2]}/{self.sha256}"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of an entry."""

    sha256: Sha256
    """The SHA-256 of the whole file."""
    chunks: tuple[Chunk, ...]
    """The chunks that the file is made of, in order."""

    @property
    def size(self) -> int:
        return sum(chunk.size for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Entry:
    """The description of one engine or build in a store."""

    role: Content
    name: str
    """The name of the recipe."""
    platform: Platform
    key: str
    """The key by which a build finds the entry."""
    created: str
    """The time in ISO 8601, UTC."""
    files: Mapping[InnerPath, StoredFile]
    """The files by their paths in the engine directory, or in the build directory."""
    folders: tuple[InnerPath, ...]
    """The folders without a file."""
    manifest: Mapping[str, Any]
    """The provenance."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    @property
    def chunks(self) -> set[Chunk]:
        return {chunk for file in self.files.values() for chunk in file.chunks}

    @property
    def digest(self) -> str:
        """The SHA-256 of the document, by which people name the entry."""
        return sha256(to_bytes(self)).hexdigest()

    @property
    def document(self) -> str:
        """The name of the document in the store."""
        return f"{entries_of(self.platform, self.key)}/{self.digest}.json"


_DOCUMENT, _ENTRY = TypeAdapter(dict[str, Any]), TypeAdapter(Entry)


def entries_of(platform: Platform, key: str) -> str:
    """The folder with every entry of a key: builders that raced have made one each."""
    return f"entries/{platform.folder}/{key}"


def to_bytes(entry: Entry) -> bytes:
    """The document of an entry: JSON in UTF-8 that is the same for equal entries."""
    content = {"schema": SCHEMA, **asdict(entry)}
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def from_bytes(content: bytes) -> Entry:
    """Reads a document; raises ValueError if it is no entry, or names a file outside of its folder."""
    try:
        values = _DOCUMENT.validate_json(content)
        if values.pop("schema", None) == SCHEMA:
            return _ENTRY.validate_python(values)
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"]))
        raise ValueError(f"{place:.80}: {wrong['msg']}" if place else wrong["msg"]) from error
    raise ValueError("it was written by another version of trtspec")


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
