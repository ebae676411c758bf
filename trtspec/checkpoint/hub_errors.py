"""What `huggingface_hub` raises, as one clear line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trtspec.errors import ModelError

_TRANSPORTS = ("requests", "urllib3", "httpx", "httpcore")
_LOG_IN = "hf auth login, or set HF_TOKEN"


@contextmanager
def explained(repo_id: str, revision: str | None) -> Iterator[None]:
    """Around calls of the library; what they raise becomes ModelError."""
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
        problem = "is neither a folder nor the name of a model on the Hugging Face Hub"
        raise ModelError(repo_id, problem, "write owner/name, or a folder relative to the recipe") from error
    except GatedRepoError as error:
        repair = f"accept its terms at https://huggingface.co/{repo_id}, then: {_LOG_IN}"
        raise ModelError(repo_id, "is a gated model, and this machine has no access to it", repair) from error
    except RepositoryNotFoundError as error:
        raise _not_found(repo_id) from error
    except RevisionNotFoundError as error:
        problem = f"has no revision {revision}"
        raise ModelError(repo_id, problem, "name a commit, tag or branch of it") from error
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        raise _not_reached(repo_id, error.__cause__ or error) from error
    except OfflineModeIsEnabled as error:
        raise _not_reached(repo_id, error) from error
    except Exception as error:
        is_transfer = type(error) is OSError and error.errno is None  # a file of another size than announced
        if not is_transfer and type(error).__module__.partition(".")[0] not in _TRANSPORTS:
            raise
        problem = f"the download broke off ({type(error).__name__})"
        raise ModelError(repo_id, problem, "run the command again; it goes on where it stopped") from error


def _not_found(repo_id: str) -> ModelError:
    from huggingface_hub import get_token

    problem = "is neither a folder nor a model of the Hugging Face Hub that this machine may see"
    private = (
        "for a private model, take a token that may read it"
        if get_token()
        else f"for a private model: {_LOG_IN}"
    )
    return ModelError(repo_id, problem, f"check the spelling; a folder is written ./{repo_id}; {private}")


def _not_reached(repo_id: str, error: BaseException) -> ModelError:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        problem = "is not whole on this machine, and HF_HUB_OFFLINE is set"
        return ModelError(repo_id, problem, "unset HF_HUB_OFFLINE once, to download it")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return ModelError(repo_id, "the Hub does not accept the token of this machine", _LOG_IN)
    if status == 403:
        return ModelError(repo_id, "the token of this machine may not read this model", "take one that may")
    if status is not None:
        return ModelError(repo_id, f"the Hub answered with status {status}", "try again later")
    repair = "check the network and HF_ENDPOINT; a folder here is written ./folder"
    return ModelError(repo_id, "is not on this machine, and the Hub cannot be reached", repair)
