"""Tells which variables of an environment are secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping

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


def is_secret(name: str, value: str) -> bool:
    """Says whether a variable looks like a secret, by its name or by its value; pure."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that a server gets: those that do not look like a secret; pure."""
    return {name: value for name, value in environment.items() if not is_secret(name, value)}
