"""Models of the Hugging Face Hub as folders of this machine: safetensors alone, nothing that runs."""

from __future__ import annotations

import re
from pathlib import Path

from trtspec.checkpoint.tensors import read_tensors
from trtspec.errors import ModelError

_FILES = ("*.safetensors", "*.json", "*.jinja")


def cached_folder(repo_id: str, revision: str | None = None) -> Path | None:
    """The snapshot that this machine has, whole or not, without asking the network."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None


def fetch(repo_id: str, revision: str | None = None) -> Path:
    """The snapshot, downloaded if need be, in a folder named after its commit. Raises ModelError.

    A commit never changes, so one that is whole in the cache needs no network.
    """
    pinned = revision is not None and re.fullmatch("[0-9a-f]{40}", revision)
    cached = cached_folder(repo_id, revision) if pinned else None
    return cached if cached and _is_whole(cached) else _download(repo_id, revision)


def _is_whole(folder: Path) -> bool:
    """A download that broke off leaves a snapshot without some of its files."""
    try:
        read_tensors(folder)
    except ModelError:
        return False
    return (folder / "tokenizer.json").is_file()


def _download(repo_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=list(_FILES)))
    except HFValidationError as error:
        problem = "is neither a folder nor the name of a model on the Hugging Face Hub"
        raise ModelError(repo_id, problem, "write owner/name, or a folder relative to the recipe") from error
    except GatedRepoError as error:
        repair = f"accept its terms at https://huggingface.co/{repo_id}, then: hf auth login"
        raise ModelError(repo_id, "is a gated model, and this machine has no access to it", repair) from error
    except RepositoryNotFoundError as error:
        problem = "is neither a folder nor a model of the Hugging Face Hub that this machine may see"
        repair = f"check the spelling; a folder is written ./{repo_id}; for a private model: hf auth login"
        raise ModelError(repo_id, problem, repair) from error
    except RevisionNotFoundError as error:
        problem = f"has no revision {revision}"
        raise ModelError(repo_id, problem, "name a commit, tag or branch of it") from error
    except LocalEntryNotFoundError as error:
        repair = "check the network, HF_ENDPOINT and HF_HUB_OFFLINE; a folder here is written ./folder"
        raise ModelError(repo_id, "is not on this machine, and the Hub cannot be reached", repair) from error
    except HfHubHTTPError as error:
        raise ModelError(repo_id, f"cannot be downloaded: {error}") from error
