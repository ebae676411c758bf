"""Finds the file of calibration texts, on this machine or in a dataset of the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trtspec.base.errors import DatasetError
from trtspec.checkpoint.calibration import FILE
from trtspec.models.download import DATASET, explained

LINES, PARQUET = (".jsonl", ".json", ".txt"), ".parquet"
"""The suffixes of files of texts: those with one text a line, which may be compressed, and Parquet's."""
_ON_HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?(/(?P<path>.+))?")
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset's file."""

    name: str
    """The recipe's name for the dataset."""
    file: Path
    revision: str | None
    """The commit on the Hub; None for a local file."""

    @property
    def is_ready(self) -> bool:
        """True if the file holds the result of a calibration, and not texts."""
        return self.file.name.endswith(FILE)


def is_text_file(name: str) -> bool:
    """Returns True if `read_texts` reads a file of this name."""
    return name.endswith(PARQUET) or PurePosixPath(name.removesuffix(".gz")).suffix in LINES


def find_dataset(name: str, folder: Path, *, asks: bool = True) -> Dataset:
    """Finds a file relative to `folder`, or else downloads it from the Hub; raises DatasetError.

    Without `asks` the Hub is not asked, and its file is only named.

    On the Hub a file is `owner/name/path/in/it.parquet`, with `@commit` after the name to pin it; the path
    can be left out where the dataset has one file of texts.
    """
    local = Path(os.path.normpath(folder / os.path.expanduser(name)))
    match = _ON_HUB.fullmatch(name)
    is_path = name.startswith((".", "/", "~")) or (match and not match["path"] and is_text_file(name))
    if match is None or is_path or local.is_file():
        if not local.is_file():
            repair = "name a file relative to the recipe's folder, or owner/name/file of a Hub dataset"
            raise DatasetError(local, "no such file", repair)
        return Dataset(name, local, None)
    found = Dataset(name, Path(name), None)
    return _download(name, match["repo"], match["revision"], match["path"]) if asks else found


def _download(name: str, repo: str, revision: str | None, path: str | None) -> Dataset:
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    with explained(repo, revision, DATASET):
        if path is None:
            files = HfApi().list_repo_files(repo, repo_type="dataset", revision=revision)
            path = _only(name, [file for file in files if is_text_file(file)])
        try:
            file = Path(hf_hub_download(repo, path, repo_type="dataset", revision=revision))
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError:
            problem, repair = f"has no {path}", f"look at https://huggingface.co/datasets/{repo}/tree/main"
            raise DatasetError(repo, problem, repair) from None
    return Dataset(name, file, file.parts[-len(Path(path).parts) - 1])


def _only(name: str, files: list[str]) -> str:
    if not files:
        raise DatasetError(name, "has no file of texts (JSONL, text or Parquet)", "choose another dataset")
    files.sort(key=lambda file: ("train" not in file, file))
    if len(files) > 1:
        shown = ", ".join(files[:_SHOWN]) + (", ..." if len(files) > _SHOWN else "")
        raise DatasetError(name, f"has {len(files)} files: {shown}", f"name one: {name}/{files[0]}")
    return files[0]
