"""Which random numbers a round draws."""

from __future__ import annotations

import secrets
from dataclasses import replace

from trtspec.serving.executor import SamplingConfig

NUM_SEEDS = 2**64


def with_seed(sampling: SamplingConfig) -> SamplingConfig:
    """Gives a completion that samples without a seed one of its own.

    Engines start a request without a seed from a fixed one, so that each round would draw the same numbers
    again.
    """
    if sampling.is_greedy or sampling.seed is not None:
        return sampling
    return replace(sampling, seed=secrets.randbelow(NUM_SEEDS))


def at_token(sampling: SamplingConfig, position: int) -> SamplingConfig:
    """The sampling of a request that starts with token `position` of a completion.

    It goes to draft and target alike: both then draw the same number for the same token, which makes them
    agree more often. What is emitted is the target's own sample all the same.
    """
    if sampling.is_greedy or sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + position) % NUM_SEEDS)
