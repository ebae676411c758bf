"""What of this process's environment a server does not get; pure.

CUDA, NCCL, MPI and TensorRT-LLM read variables that nobody can list, so what looks like a secret is left out
instead: by its name, or by what tokens and URLs with a password look like.
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
    return {
        name: value
        for name, value in environment.items()
        if not _NAME.search(name) and not _VALUE.search(value)
    }
