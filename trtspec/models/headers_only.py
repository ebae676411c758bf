"""Fetches what a plan needs of the Hub's models: configs, tokenizer, and the headers and digests of the
weights.

The weights, up to hundreds of gigabytes, are downloaded only for steps that read them. A plan, a build that
has nothing to do, or one whose engines are in a store needs none.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trtspec.base.atomic import publish
from trtspec.base.cache import cache_folder
from trtspec.base.errors import ModelError, TensorError
from trtspec.base.locks import locked
from trtspec.base.progress import Progress
from trtspec.base.threads import in_threads
from trtspec.models.source import Source
from trtspec.models.tokenizer import copy_tokenizer

_DIGESTS = ".sha256.json"
_SHA256 = re.compile("[0-9a-f]{64}")
_THREADS = 8  # more than processors: a request mostly waits for the network


def fetch_headers(repo_id: str, snapshot: Path, weights: Sequence[Any], watch: Progress) -> Path:
    """Returns a folder that has a snapshot's files, and in place of its weights their headers.

    Each header is followed by a hole as long as the data. `weights` are huggingface_hub's `RepoFile`s; of
    each the Hub has the SHA-256. Raises TensorError.
    """
    made = headers_of(snapshot)
    made.parent.mkdir(parents=True, exist_ok=True)
    with (
        locked(made.with_name(f".{made.name}.lock"), lambda: None),
        TemporaryDirectory(dir=made.parent, prefix=".", ignore_cleanup_errors=True) as temporary,
    ):
        if made.is_dir():  # Another process has created it meanwhile.
            return made
        new = Path(temporary, snapshot.name)
        new.mkdir()
        for file in snapshot.iterdir():
            if file.is_file():
                (new / file.name).write_bytes(file.read_bytes())
        copy_tokenizer(snapshot, new)
        (new / _DIGESTS).write_text(json.dumps({file.path: file.lfs.sha256 for file in weights}))
        with watch(f"read the headers of {repo_id}", None) as advance:
            in_threads(partial(_outline, repo_id, new), [file.path for file in weights], advance, _THREADS)
        publish(new, made)
    return made


def headers_of(snapshot: Path) -> Path:
    """Returns the folder that has a snapshot with the headers of its weights, if this machine has them."""
    return cache_folder() / "outlines" / snapshot.parent.parent.name / snapshot.name


def digests_of_weights(folder: Path) -> Mapping[str, str]:
    """The SHA-256 of each weight file that was not downloaded, by name; empty for a folder with weights."""
    file = folder / _DIGESTS
    return json.loads(file.read_text()) if file.is_file() else {}


def digests_of_blobs(folder: Path) -> Mapping[str, str]:
    """The SHA-256 that the Hub's cache has for large files of a snapshot, by their names.

    They come from the Hub, and were not checked against the files. Other folders have none.
    """
    called = {file.name: file.readlink().name for file in folder.iterdir() if file.is_symlink()}
    return {name: blob for name, blob in called.items() if _SHA256.fullmatch(blob)}


def is_headers_only(source: Source) -> bool:
    """Returns True if the weights of this model are not on this machine."""
    return (source.folder / _DIGESTS).is_file()


def check_weights(source: Source) -> None:
    """Raises ModelError if the weights, which are about to be read, are not on this machine."""
    if is_headers_only(source):
        problem = "has only the headers of a model, and its build has changed meanwhile"
        raise ModelError(source.folder, problem, "run the command again")


def _outline(repo_id: str, folder: Path, name: str) -> int:
    """Writes the header of a weight file and a hole as long as its data; returns 0 bytes of progress."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import SafetensorsParsingError

    try:
        found = HfApi().parse_safetensors_file_metadata(repo_id, name, revision=folder.name).tensors
    except (SafetensorsParsingError, struct.error, TypeError) as error:
        raise TensorError(f"{repo_id}/{name}", f"is not safetensors: {error}") from error
    tensors = {
        name: {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": tensor.data_offsets}
        for name, tensor in found.items()
    }
    header = json.dumps(tensors).encode()
    end = max((tensor.data_offsets[1] for tensor in found.values()), default=0)
    with (folder / name).open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + end)
    return 0
