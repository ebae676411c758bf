"""Turns what `huggingface_hub` raises into errors of trtspec, each of one clear line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trtspec.base.errors import DatasetError, ModelError, TrtspecError

_TRANSPORTS = ("requests", "urllib3", "httpx", "httpcore")
_LOG_IN = "hf auth login, or set HF_TOKEN"


@dataclass(frozen=True, slots=True)
class HubKind:
    """A kind of thing on the Hub."""

    name: str
    local: str
    """The word for what it is on this machine."""
    path: str
    """Its prefix in the Hub's URLs."""
    error: type[TrtspecError]
    """Raised if it cannot be had."""


MODEL = HubKind("model", "folder", "", ModelError)
DATASET = HubKind("dataset", "file", "datasets/", DatasetError)


@contextmanager
def explained(repo_id: str, revision: str | None, kind: HubKind = MODEL) -> Iterator[None]:
    """Turns what calls of the library raise within this context into the kind's error."""
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
        is_transfer = type(error) is OSError and error.errno is None  # raised for a file of the wrong size
        if not is_transfer and type(error).__module__.partition(".")[0] not in _TRANSPORTS:
            raise
        if "Connect" in type(error).__name__:
            raise _not_reached(repo_id, kind, error) from error
        problem = f"the download broke off ({type(error).__name__})"
        raise kind.error(repo_id, problem, "run the command again; it goes on where it stopped") from error


def _not_found(repo_id: str, kind: HubKind) -> TrtspecError:
    from huggingface_hub import get_token

    problem = f"is neither a {kind.local} nor a {kind.name} of the Hugging Face Hub that this machine may see"
    private = (
        f"for a private {kind.name}, take a token that may read it"
        if get_token()
        else f"for a private {kind.name}: {_LOG_IN}"
    )
    return kind.error(
        repo_id, problem, f"check the spelling; a {kind.local} is written ./{repo_id}; {private}"
    )


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
            repo_id, f"the token of this machine may not read this {kind.name}", "take one that may"
        )
    if status is not None:
        return kind.error(repo_id, f"the Hub answered with status {status}", "try again later")
    repair = f"check the network and HF_ENDPOINT; a {kind.local} here is written ./{kind.local}"
    return kind.error(repo_id, "is not complete on this machine, and the Hub cannot be reached", repair)
