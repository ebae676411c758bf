"""Asks the Hugging Face Hub, and turns what `huggingface_hub` raises into errors of one clear line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from trtspec.base.errors import DatasetError, ModelError, TrtspecError, UnavailableError

COMMIT = re.compile("[0-9a-f]{40}")
_TRANSPORTS = ("requests", "urllib3", "httpx", "httpcore")
_NETWORK = "check the network, its proxy and HF_ENDPOINT"
_LOG_IN = "hf auth login, or set HF_TOKEN"


@dataclass(frozen=True, slots=True)
class HubKind:
    """A kind of thing on the Hub."""

    name: str
    local: str
    """Its name on this machine: a folder or a file."""
    path: str
    """Its prefix in the Hub's URLs."""
    error: type[TrtspecError]
    """The error if it cannot be fetched."""


MODEL = HubKind("model", "folder", "", ModelError)
DATASET = HubKind("dataset", "file", "datasets/", DatasetError)


def find_commit(repo_id: str, revision: str | None, timeout: float) -> str:
    """The commit that a revision names now.

    Raises ModelError, or UnavailableError if the Hub does not answer within `timeout` seconds.
    """
    from huggingface_hub import HfApi

    if revision and COMMIT.fullmatch(revision):
        return revision
    with explained(repo_id, revision, timeout=timeout):
        return str(HfApi().model_info(repo_id, revision=revision, timeout=timeout).sha)


def check_access(repo_id: str, revision: str | None, timeout: float) -> None:
    """Raises ModelError for a model that this machine may not download; what is no model passes.

    Raises UnavailableError if the Hub does not answer within `timeout` seconds. It is asked only once:
    `get_hf_file_metadata` would try for 23 s.
    """
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    with explained(repo_id, revision, timeout=timeout), suppress(EntryNotFoundError):
        url = hf_hub_url(repo_id, "config.json", revision=revision)
        hf_raise_for_status(get_session().head(url, headers=build_hf_headers(), timeout=timeout))


def check_connection(timeout: float) -> None:
    """Raises UnavailableError if the Hub does not answer within `timeout` seconds."""
    from huggingface_hub import get_session
    from huggingface_hub.constants import ENDPOINT

    try:
        with explained(ENDPOINT, None, timeout=timeout):
            get_session().head(ENDPOINT, timeout=timeout)
    except ModelError as error:
        raise UnavailableError(ENDPOINT, "cannot be reached", _NETWORK) from error


@contextmanager
def explained(
    repo_id: str, revision: str | None, kind: HubKind = MODEL, *, timeout: float | None = None
) -> Iterator[None]:
    """Turns the library's errors within this context into the kind's error.

    An answer that takes longer than `timeout` seconds is an UnavailableError; with None it may take any time.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except HFValidationError as error:
        problem = f"is neither a {kind.local} nor the name of a {kind.name} on the Hugging Face Hub"
        repair = f"write owner/name, or a {kind.local} relative to the recipe"
        raise kind.error(repo_id, problem, repair) from error
    except GatedRepoError as error:
        repair = f"accept its terms at https://huggingface.co/{kind.path}{repo_id}, then: {_LOG_IN}"
        problem = f"is a gated {kind.name}, and this machine has no access to it"
        raise kind.error(repo_id, problem, repair) from error
    except RepositoryNotFoundError as error:
        raise _not_found(repo_id, kind) from error
    except RevisionNotFoundError as error:
        problem = f"has no revision {revision}"
        raise kind.error(repo_id, problem, "name a commit, tag or branch of it") from error
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        raise _not_reached(repo_id, kind, error.__cause__ or error) from error
    except OfflineModeIsEnabled as error:
        raise _not_reached(repo_id, kind, error) from error
    except Exception as error:
        # Of either HTTP library that huggingface_hub may use.
        if timeout and "Timeout" in type(error.__cause__ or error).__name__:
            raise UnavailableError("the Hub", f"does not answer within {timeout:g} s", _NETWORK) from error
        is_transfer = type(error) is OSError and error.errno is None  # raised for a file of the wrong size
        if not is_transfer and type(error).__module__.partition(".")[0] not in _TRANSPORTS:
            raise
        if "Connect" in type(error).__name__:
            raise _not_reached(repo_id, kind, error) from error
        problem = f"the download was interrupted ({type(error).__name__})"
        raise kind.error(repo_id, problem, "run the command again; it continues where it stopped") from error


def _not_found(repo_id: str, kind: HubKind) -> TrtspecError:
    from huggingface_hub import get_token

    problem = f"is neither a {kind.local} nor a {kind.name} of the Hugging Face Hub that this machine may see"
    private = (
        f"for a private {kind.name}, use a token that may read it"
        if get_token()
        else f"for a private {kind.name}: {_LOG_IN}"
    )
    return kind.error(repo_id, problem, f"check the spelling; write a {kind.local} as ./{repo_id}; {private}")


def _not_reached(repo_id: str, kind: HubKind, error: BaseException) -> TrtspecError:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        problem = "is not complete on this machine, and HF_HUB_OFFLINE is set"
        return kind.error(repo_id, problem, "unset HF_HUB_OFFLINE once, to download it")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return kind.error(repo_id, "the Hub does not accept the token of this machine", _LOG_IN)
    if status == 403:
        return kind.error(
            repo_id, f"the token of this machine may not read this {kind.name}", "use a token that may"
        )
    if status is not None:
        repair = "try again later" if status >= 500 or status == 429 else _NETWORK
        return kind.error(repo_id, f"the Hub answered with status {status}", repair)
    repair = f"check the network and HF_ENDPOINT; write a {kind.local} of this machine as ./{kind.local}"
    return kind.error(repo_id, "is not complete on this machine, and the Hub cannot be reached", repair)
