"""Describes one engine, or one build that is ready to be served, in a store: a small document."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, get_args

from trtspec.pipeline.engine.loading import Runtime, base_version, fits_sm, fits_tensorrt
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
_MOST_DEEP, _TOO_DEEP = 64, "it is nested too deeply"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Chunk(NamedTuple):
    """A piece of a file, which is one object of the store."""

    sha256: str
    size: int
    """In bytes."""

    @property
    def name(self) -> str:
        return f"objects/sha256/{self.sha256[:2]}/{self.sha256}"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of an entry."""

    sha256: str
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
    files: Mapping[str, StoredFile]
    """The files by their paths in the engine directory, or in the build directory."""
    folders: tuple[str, ...]
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


def entries_of(platform: Platform, key: str) -> str:
    """The folder with every entry of a key: builders that raced have made one each."""
    return f"entries/{platform.folder}/{key}"


def to_bytes(entry: Entry) -> bytes:
    """The document of an entry: JSON in UTF-8 that is the same for equal entries."""
    content = {"schema": SCHEMA, **asdict(entry)}
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def from_bytes(content: bytes) -> Entry:
    """Reads a document; raises ValueError if it is no entry, or names a file outside of its folder."""
    values = _parsed(content)
    if not isinstance(values, dict) or values.pop("schema", None) != SCHEMA:
        raise ValueError("it was written by another version of trtspec")
    try:
        files = {
            _inside(path): StoredFile(_digest(file["sha256"]), tuple(map(_chunk, file["chunks"])))
            for path, file in values.pop("files").items()
        }
        folders = tuple(map(_inside, values.pop("folders")))
        platform = Platform(**values.pop("platform"))
        entry = Entry(**values, platform=platform, files=files, folders=folders)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is incomplete: {error}") from error
    if entry.role not in get_args(Content):
        raise ValueError(f"its role is {entry.role!r}")
    texts = (entry.name, entry.key, entry.created)
    if not (all(isinstance(text, str) for text in texts) and isinstance(entry.manifest, dict)):
        raise ValueError("its name, its key or its manifest is wrong")
    return entry


def _parsed(content: bytes) -> Any:
    """Returns the JSON of a document; raises ValueError, also for one that is nested too deeply."""
    try:
        values = json.loads(content)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    layer = [values]
    for _ in range(_MOST_DEEP):
        layer = [item for value in layer for item in _inside_of(value)]
        if not layer:
            return values
    raise ValueError(_TOO_DEEP)


def _inside_of(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _chunk(values: tuple[str, int]) -> Chunk:
    digest, size = values
    if type(size) is not int or size < 0:
        raise ValueError(f"a size is {size!r}")
    return Chunk(_digest(digest), size)


def _digest(value: str) -> str:
    if not _DIGEST.fullmatch(value):
        raise ValueError(f"{value!r:.80} is no SHA-256")
    return value


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    os.fsencode(path)  # raises ValueError for half characters, which no disk takes; nor does it take NUL
    if "\0" in path or not parts or path != "/".join(parts) or ".." in parts or path.startswith("/"):
        raise ValueError(f"{path!r:.80} is not a path in its folder")
    return path
