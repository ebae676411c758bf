"""Brings models of the Hugging Face Hub into folders of this machine: only safetensors, and no code.

`huggingface_hub` does the transfer: it knows `HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT` and `HF_HUB_OFFLINE`, and
resumes a file where an earlier download broke off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtspec.base.errors import ModelError, UnavailableError
from trtspec.base.progress import Progress, no_progress
from trtspec.models.download import download
from trtspec.models.hub_errors import explained
from trtspec.models.tensors import read_tensors

_COMMIT = re.compile("[0-9a-f]{40}")


def cached_folder(repo_id: str, revision: str | None = None) -> Path | None:
    """The folder of the snapshot in this machine's cache, complete or not; None if there is none.

    The network is not used.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None


def fetch(repo_id: str, revision: str | None = None, watch: Progress = no_progress) -> Path:
    """Returns the snapshot's folder, which is named after its commit, and downloads what is missing.

    Raises ModelError, or UnavailableError if the disk has no room for it.
    """
    return whole(repo_id, revision) or download(repo_id, revision, watch)


def whole(repo_id: str, revision: str | None) -> Path | None:
    """The folder of a snapshot that is complete in the cache and may be used without asking the Hub, or None.

    A commit never changes, so the Hub need not be asked. A branch or tag can change, and the cached one is
    used only if `HF_HUB_OFFLINE` is set.
    """
    from huggingface_hub.constants import HF_HUB_OFFLINE

    settled = HF_HUB_OFFLINE or _COMMIT.fullmatch(revision or "")
    cached = cached_folder(repo_id, revision) if settled else None
    return cached if cached and is_whole(cached) else None


def is_whole(folder: Path) -> bool:
    """Returns True if all weights and the tokenizer are there; an interrupted download leaves some files
    out.
    """
    try:
        read_tensors(folder)
    except ModelError:
        return False
    return (folder / "tokenizer.json").is_file()


def find_commit(repo_id: str, revision: str | None, timeout: float) -> str:
    """The commit that a revision names now.

    Raises ModelError, or UnavailableError if the Hub does not answer within `timeout` seconds.
    """
    from huggingface_hub import HfApi

    if revision and _COMMIT.fullmatch(revision):
        return revision
    with explained(repo_id, revision), _answering(timeout):
        return str(HfApi().model_info(repo_id, revision=revision, timeout=timeout).sha)


def check_access(repo_id: str, revision: str | None, timeout: float) -> None:
    """Raises ModelError for a model that this machine may not download.

    Raises UnavailableError if the Hub does not answer within `timeout` seconds. It is asked only once:
    `get_hf_file_metadata` would try for 23 s.
    """
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    with explained(repo_id, revision), _answering(timeout):
        url = hf_hub_url(repo_id, "config.json", revision=revision)
        hf_raise_for_status(get_session().head(url, headers=build_hf_headers(), timeout=timeout))


def check_connection(timeout: float) -> None:
    """Raises UnavailableError if the Hub does not answer within `timeout` seconds."""
    from huggingface_hub import get_session
    from huggingface_hub.constants import ENDPOINT

    with _answering(timeout):
        try:
            with explained(ENDPOINT, None):
                get_session().head(ENDPOINT, timeout=timeout)
        except ModelError as error:
            raise UnavailableError(ENDPOINT, "cannot be reached", _NETWORK) from error


@contextmanager
def _answering(timeout: float) -> Iterator[None]:
    """Turns a timeout of either HTTP library that huggingface_hub may use into UnavailableError."""
    try:
        yield
    except Exception as error:
        cause = error.__cause__ or error
        if "Timeout" not in type(cause).__name__:
            raise
        problem = f"does not answer within {timeout:g} s"
        raise UnavailableError("the Hub", problem, _NETWORK) from error


_NETWORK = "check the network, its proxy and HF_ENDPOINT"
