"""Finds the mask token of a draft that proposes several tokens in one step."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.base.findings import Finding
from trtspec.methods.method import PARALLEL
from trtspec.models.source import HfConfig, Source

_KEYS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
"""The keys that vLLM 0.32 looks for (v1/worker/gpu/spec_decode/utils.py: get_parallel_drafting_token_id)."""


def mask_token(config: HfConfig) -> int | None:
    """Returns the token's id; None for a model without one."""
    for section in (config.section("dflash_config"), config):
        for key in _KEYS:
            if (token := section.token(key)) is not None:
                return token
    return None


def check_parallel(draft: Source) -> Iterator[Finding]:
    """Yields a problem if a draft model cannot propose all tokens in one step."""
    if mask_token(draft.config) is None:
        problem = f"the draft's config.json names no mask token: none of {', '.join(_KEYS)}"
        repair = "use a draft that was trained for this (PARD), or remove parallel_drafting"
        yield Finding(PARALLEL, problem, repair, effect="the server does not start")
