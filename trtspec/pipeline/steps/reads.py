"""One digest for those files of a model that a step reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trtspec.base.digest import digest_of
from trtspec.models.tokenizer import TOKENIZER_FILES
from trtspec.pipeline.plan.facts import ModelFacts


def digest_of_files(reads: Callable[[str], bool], *models: ModelFacts, **values: Any) -> str | None:
    """Returns a digest of `values` and of the models' files whose names `reads` accepts.

    It is None if the digests of the files are not known.
    """
    if any(model.digests is None for model in models):
        return None
    chosen = [{name: sha for name, sha in (model.digests or {}).items() if reads(name)} for model in models]
    return digest_of([chosen, values])


def is_tokenizer(name: str) -> bool:
    return name in TOKENIZER_FILES or name.endswith(".jinja") or name == "generation_config.json"


def is_safetensors(name: str) -> bool:
    return name.endswith(".safetensors")


def is_weight_or_tokenizer(name: str) -> bool:
    return is_weight(name) or name in TOKENIZER_FILES or name.endswith(".jinja")


def is_weight(name: str) -> bool:
    return name == "config.json" or name.endswith(".safetensors")


def is_config(name: str) -> bool:
    return not name.endswith(".safetensors")
