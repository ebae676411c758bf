"""Models of the Hugging Face Hub that this machine has already."""

from __future__ import annotations

from pathlib import Path


def cached_folder(repo_id: str, revision: str | None = None) -> Path | None:
    """The snapshot of a Hub model in the local cache, None where it was never downloaded; touches no network."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    return Path(config).parent if isinstance(config, str) else None
