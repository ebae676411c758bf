"""Downloads a model from the Hub: configs and tokenizer, then the weights that they name, nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from trtspec.base.errors import ModelError, UnavailableError
from trtspec.base.progress import Advance, Progress
from trtspec.base.units import mb_or_gb
from trtspec.models.hub_errors import explained
from trtspec.models.tensors import INDEX, SINGLE, read_index, refuse_pickles

_CONFIGS = ("*.json", "*.jinja")
_ELSEWHERE = "*/*"  # folders hold other formats of the same model: original/, onnx/, gguf/
_INTERVAL_S = 0.5


def download(repo_id: str, revision: str | None, watch: Progress) -> Path:
    """Downloads what the cache lacks of a snapshot, and returns the snapshot's folder.

    Raises ModelError, or UnavailableError if the disk has no room for it.
    """
    from huggingface_hub import snapshot_download

    with explained(repo_id, revision):
        folder, names = begin(repo_id, revision)
        if all((folder / name).is_file() for name in names):
            return folder
        blobs = _blobs(folder, published(repo_id, folder.name, names))
        _check_space(repo_id, folder, blobs)
        with watch(f"download {repo_id}", sum(blobs.values())) as advance, _counted(blobs, advance):
            snapshot_download(repo_id, revision=folder.name, allow_patterns=names)
    return folder


def begin(repo_id: str, revision: str | None) -> tuple[Path, list[str]]:
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


def published(repo_id: str, commit: str, names: Sequence[str]) -> Sequence[Any]:
    """The Hub's metadata of these files, huggingface_hub's `RepoFile`; raises ModelError if it lacks one."""
    from huggingface_hub import HfApi

    found = HfApi().get_paths_info(repo_id, list(names), revision=commit)
    if {file.path for file in found} != set(names):
        _refuse_what_is_missing(repo_id, names, HfApi().list_repo_files(repo_id, revision=commit))
    return found


def _refuse_what_is_missing(repo_id: str, names: Sequence[str], files: Sequence[str]) -> None:
    refuse_pickles(repo_id, files)
    missing = next(name for name in names if name not in files)
    raise ModelError(repo_id, f"has no {missing}", "choose a model that is published as safetensors")


def _blobs(folder: Path, files: Sequence[Any]) -> Mapping[Path, int]:
    """The cache's files, which are named by digests, and the size in bytes of each when it is complete."""
    blobs = folder.parent.parent / "blobs"
    return {blobs / (file.lfs.sha256 if file.lfs else file.blob_id): file.size for file in files}


def cache_of(repo_id: str) -> tuple[Path, int]:
    """Returns the Hub's cache, and the bytes that it has of a model already, of whatever revision."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    cache = Path(constants.HF_HUB_CACHE)
    blobs = cache / repo_folder_name(repo_id=repo_id, repo_type="model") / "blobs"
    files = blobs.iterdir() if blobs.is_dir() else ()
    return cache, _present(dict.fromkeys(files, 0))


def _present(blobs: Mapping[Path, int]) -> int:
    """The bytes of these files that are on the disk, those of unfinished downloads included."""
    present = 0
    for blob in blobs:
        for file in (blob, blob.with_name(f"{blob.name}.incomplete")):
            try:
                stat = file.stat()
            except FileNotFoundError:
                continue
            # Chunks that arrive in any order leave a file that is longer than its content.
            present += stat.st_size if file == blob else min(stat.st_size, stat.st_blocks * 512)
    return present


def _check_space(repo_id: str, folder: Path, blobs: Mapping[Path, int]) -> None:
    needed, free = sum(blobs.values()) - _present(blobs), shutil.disk_usage(folder).free
    if needed > free:
        problem = f"{repo_id} needs {mb_or_gb(needed)} more, and {mb_or_gb(free)} are free"
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
