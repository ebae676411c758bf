"""Describes one engine, or one build that is ready to be served, in a store: a small document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, StringConstraints, TypeAdapter, ValidationError

from trtspec.pipeline.engine.directory import Runtime, base_version, fits_sm, fits_tensorrt
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
