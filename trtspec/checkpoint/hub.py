"""Models of the Hugging Face Hub, in the cache that every Hugging Face tool shares."""

from __future__ import annotations

from pathlib import Path

from trtspec.errors import ModelError

# No pickles, no Python: nothing that could run.
_FILES = ("*.json", "*.safetensors", "*.jinja")


def cached_folder(repo_id: str, revision: str | None = None) -> Path | None:
    """The snapshot of a model in the local cache, None if it was never downloaded; touches no network."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    return Path(config).parent if isinstance(config, str) else None


def fetch(repo_id: str, revision: str | None = None) -> Path:
    """The snapshot of a model, downloaded if need be, in a folder named after the commit; raises ModelError."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=list(_FILES)))
    except GatedRepoError:
        repair = f"accept its terms at https://huggingface.co/{repo_id}, then: hf auth login"
        raise ModelError(repo_id, "is a gated model, and this machine has no access to it", repair) from None
    except RepositoryNotFoundError:
        repair = f"check the spelling; a folder is written ./{repo_id}; for a private model: hf auth login"
        raise ModelError(repo_id, "is neither a folder nor a model of the Hugging Face Hub", repair) from None
    except RevisionNotFoundError:
        raise ModelError(
            repo_id, f"has no revision {revision}", "name a commit, tag or branch of it"
        ) from None
    except LocalEntryNotFoundError as error:
        repair = (
            "check the network, HF_ENDPOINT and HF_HUB_OFFLINE; a folder on this machine is written ./folder"
        )
        raise ModelError(repo_id, "is not on this machine, and the Hub cannot be reached", repair) from error
    except HfHubHTTPError as error:
        raise ModelError(repo_id, f"cannot be downloaded: {error}") from error
