"""Models of the Hugging Face Hub as folders of this machine: safetensors alone, nothing that runs.

`huggingface_hub` does the transfer: it knows `HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT` and `HF_HUB_OFFLINE`, and
goes on with a file where an earlier download broke off.
"""

from __future__ import annotations

import re
from pathlib import Path

from trtspec.checkpoint.download import download
from trtspec.checkpoint.tensors import read_tensors
from trtspec.errors import ModelError
from trtspec.watch import Watch, unwatched


def cached_folder(repo_id: str, revision: str | None = None) -> Path | None:
    """The snapshot that this machine has, whole or not, without asking the network."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None


def fetch(repo_id: str, revision: str | None = None, watch: Watch = unwatched) -> Path:
    """The snapshot, downloaded if need be, in a folder named after its commit.

    A commit never changes, so one that is whole in the cache needs no network; nor does a branch offline.
    Raises ModelError, or UnavailableError where the disk has no room for it.
    """
    from huggingface_hub.constants import HF_HUB_OFFLINE

    settled = HF_HUB_OFFLINE or re.fullmatch("[0-9a-f]{40}", revision or "")
    cached = cached_folder(repo_id, revision) if settled else None
    return cached if cached and _is_whole(cached) else download(repo_id, revision, watch)


def _is_whole(folder: Path) -> bool:
    """A download that broke off leaves a snapshot without some of its files."""
    try:
        read_tensors(folder)
    except ModelError:
        return False
    return (folder / "tokenizer.json").is_file()
