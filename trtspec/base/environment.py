"""Tells what is secret in an environment, and in a command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

# Nobody can list the variables that CUDA, NCCL, MPI and TensorRT-LLM read, so those that look like secrets
# are left out instead: by their names, or by values that look like tokens or like URLs with a password.
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|JWT|BEARER|AUTH|DSN$|_PAT$|_PWD$|KEY$|KEY_?ID$"
    r"|^(AWS|AZURE|GOOGLE|GCP|GCLOUD|GITHUB|GITLAB|CI|ACTIONS|HF|HUGGING\w*|WANDB|NGC|OPENAI|DOCKER|SSH|VAULT)_",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"://[^/@\s]*:[^/@\s]+@|-----BEGIN|\b(hf_|ghp_|github_pat_|glpat-|sk-|nvapi-|AKIA|xox\w-|eyJ)\w{8}"
)
_SECRET_OPTION = re.compile(r"--?[\w-]*(key|token|secret|passw\w*|passphrase)", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Says whether a variable looks like a secret, by its name or by its value; pure."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that a server gets: those that do not look like a secret; pure."""
    return {name: value for name, value in environment.items() if not is_secret(name, value)}


def without_keys(command: str) -> str:
    """Returns a command line with `...` in place of what looks like a secret; pure.

    An option may take several keys, so all words up to the next option are left out.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    shown = list(_without_keys(words))
    return command if shown == words else shlex.join(shown)


def _without_keys(words: list[str]) -> Iterator[str]:
    is_value = False
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            is_secret_option = bool(_SECRET_OPTION.fullmatch(name))
            is_value = is_secret_option and not equals
            yield f"{name}=..." if is_secret_option and equals else word
        elif is_value or _SECRET_VALUE.search(word):
            yield "..."
        else:
            yield f"{name}=..." if equals and name.isidentifier() and is_secret(name, value) else word
