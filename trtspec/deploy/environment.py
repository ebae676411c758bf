"""The environment of a server: that of this process, without what looks like a secret; pure.

Nobody can list the variables that CUDA, NCCL, MPI and TensorRT-LLM read, so those that look like secrets are
left out instead: by their names, or by values that look like tokens or like URLs with a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|JWT|BEARER|AUTH|DSN$|_PAT$|_PWD$|KEY$|KEY_?ID$"
    r"|^(AWS|AZURE|GOOGLE|GCP|GCLOUD|GITHUB|GITLAB|CI|ACTIONS|HF|HUGGING\w*|WANDB|NGC|OPENAI|DOCKER|SSH|VAULT)_",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"://[^/@\s]*:[^/@\s]+@|-----BEGIN|\b(hf_|ghp_|github_pat_|glpat-|sk-|nvapi-|AKIA|xox\w-|eyJ)\w{8}"
)


def for_server(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that a server gets."""
    return {
        name: value
        for name, value in environment.items()
        if not _NAME.search(name) and not _VALUE.search(value)
    }
