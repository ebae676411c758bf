"""Brings models of the Hugging Face Hub into folders of this machine: only safetensors, and no code.

Configs and tokenizer come first, then the weights that they name. `huggingface_hub` does the transfer: it
knows `HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT` and `HF_HUB_OFFLINE`, and resumes a file where an earlier download
broke off.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from trtspec.base.errors import ModelError, UnavailableError
from trtspec.base.progress import Advance, Progress, no_progress
from trtspec.base.units import lacking
from trtspec.models.headers_only import fetch_headers, headers_of
from trtspec.models.hf_config import refuse_foreign
from trtspec.models.hub import COMMIT, explained
from trtspec.models.model_file import has_file
from trtspec.models.tensors import INDEX, SINGLE, read_index, read_tensors

_CONFIGS = ("*.json", "*.jinja")
# Folders, besides additional_chat_templates/, hold other formats of the same model: original/, onnx/, gguf/.
_ELSEWHERE = ["[!a]*/*", "a[!d]*/*", "ad[!d]*/*"]
_INTERVAL_S = 0.5


def fetch(
    location: Path | str, revision: str | None = None, watch: Progress = no_progress, *, weights: bool = True
) -> Path:
    """Returns a model's folder; that of a model of the Hub is named after its commit.

    What this machine lacks of it is downloaded; without `weights` only their headers are, unless they are so
    small that the Hub has no SHA-256 of them. Raises ModelError, TensorError, or UnavailableError if the disk
    has no room for it.
    """
    if isinstance(location, Path):
        return location
    from huggingface_hub.constants import HF_HUB_OFFLINE

    # A commit never changes, so the Hub need not be asked. A branch or tag can change, and the cached one is
    # used only if the Hub may not be asked.
    is_settled = HF_HUB_OFFLINE or COMMIT.fullmatch(revision or "")
    cached = cached_folder(location, revision) if is_settled else None
    if cached and is_whole(cached):
        return cached
    with explained(location, revision):
        folder, names = _begin(location, revision)
        if all((folder / name).is_file() for name in names):
            return folder
        if not weights and (headers := headers_of(folder)).is_dir():
            return headers
        files = _find(location, folder, names)
        if weights or not all(file.lfs for file in files):
            _download(location, folder, files, watch)
            return folder
        return fetch_headers(location, folder, files, watch)


def _download(repo_id: str, folder: Path, files: Sequence[Any], watch: Progress) -> None:
    from huggingface_hub import snapshot_download

    # The cache's files are named by digests.
    cache, names = folder.parent.parent / "blobs", [file.path for file in files]
    blobs = {cache / (file.lfs.sha256 if file.lfs else file.blob_id): file.size for file in files}
    _check_space(repo_id, folder, blobs)
    with watch(f"download {repo_id}", sum(blobs.values())) as advance, _counted(blobs, advance):
        snapshot_download(repo_id, revision=folder.name, allow_patterns=names)


def cached_folder(location: Path | str, revision: str | None = None) -> Path | None:
    """Returns a model's folder; that of a model of the Hub is its snapshot in the cache, complete or not.

    None if the cache has none. The network is not used.
    """
    if isinstance(location, Path):
        return location
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(location, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None


def kept(location: Path | str, revision: str | None = None, *, is_head: bool = False) -> Path:
    """Returns a model's folder, in which the weights may be their headers alone, and asks the Hub nothing.

    Raises UnavailableError for a model of the Hub that this machine lacks, or has in part.
    """
    folder = cached_folder(location, revision)
    if folder is None:
        raise UnavailableError(str(location), "is not on this machine, and the Hub was not asked")
    if folder == location or is_head or is_whole(folder):
        return folder
    if (headers := headers_of(folder)).is_dir():
        return headers
    try:
        read_tensors(folder)
        problem = "has no tokenizer.json"
    except ModelError as error:
        problem = error.problem
    raise UnavailableError(str(location), f"is incomplete in this machine's Hub cache: {problem}")


def is_whole(folder: Path) -> bool:
    """Returns True if all weights and the tokenizer are there; an interrupted download leaves some files
    out.
    """
    try:
        read_tensors(folder)
        return has_file(folder / "tokenizer.json")
    except ModelError:
        return False


def _begin(repo_id: str, revision: str | None) -> tuple[Path, list[str]]:
    """Downloads configs and tokenizer; returns their folder and the names of the model's weight files."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    folder = Path(
        snapshot_download(
            repo_id, revision=revision, allow_patterns=list(_CONFIGS), ignore_patterns=_ELSEWHERE
        )
    )
    index = folder / INDEX
    return folder, sorted(set(read_index(index).values())) if index.is_file() else [SINGLE]


def _find(repo_id: str, folder: Path, names: Sequence[str]) -> Sequence[Any]:
    """The Hub's metadata of these files, huggingface_hub's `RepoFile`; raises ModelError if it lacks one.

    `folder` has the configs, and its name is the commit.
    """
    from huggingface_hub import HfApi

    commit = folder.name
    found = HfApi().get_paths_info(repo_id, list(names), revision=commit)
    if missing := set(names) - {file.path for file in found}:
        refuse_foreign(repo_id, HfApi().list_repo_files(repo_id, revision=commit), folder)
        problem = f"has no {min(missing)}"
        raise ModelError(repo_id, problem, "choose a model that is published as safetensors")
    return found


def cache_of(repo_id: str) -> tuple[Path, int]:
    """Returns the Hub's cache, and the bytes that it already has of any revision of a model."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    cache = Path(constants.HF_HUB_CACHE)
    blobs = cache / repo_folder_name(repo_id=repo_id, repo_type="model") / "blobs"
    files = blobs.iterdir() if blobs.is_dir() else ()
    return cache, _present(files)


def _present(blobs: Iterable[Path]) -> int:
    """The bytes of these files on the disk, including unfinished downloads."""
    present = 0
    for blob in blobs:
        for file in (blob, blob.with_name(f"{blob.name}.incomplete")):
            try:
                stat = file.stat()
            except FileNotFoundError:
                continue
            # Chunks arrive in any order, so a file may be longer than its content.
            present += stat.st_size if file == blob else min(stat.st_size, stat.st_blocks * 512)
    return present


def _check_space(repo_id: str, folder: Path, blobs: Mapping[Path, int]) -> None:
    """Raises UnavailableError without room for what is missing; `blobs` has the size of each."""
    needed, free = sum(blobs.values()) - _present(blobs), shutil.disk_usage(folder).free
    if needed > free:
        problem = f"{repo_id} needs {lacking(needed, free)}"
        raise UnavailableError(folder, problem, "free some space, or set HF_HOME to a folder that has it")


@contextmanager
def _counted(blobs: Mapping[Path, int], advance: Advance) -> Iterator[None]:
    """Reports the bytes that arrive by looking at the files: the library reports only to its own bars."""
    over, counted = Event(), 0

    def count() -> None:
        nonlocal counted
        present = _present(blobs)
        advance(present - counted)
        counted = present

    def watch() -> None:
        while not over.wait(_INTERVAL_S):
            count()

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        count()
