"""The seeds of a completion's requests, which decide what random numbers they draw."""

from __future__ import annotations

import secrets
from dataclasses import replace

from trtspec.serving.executor import SamplingConfig

NUM_SEEDS = 2**64
SEQUENCES_APART = 2**40


def with_seed(sampling: SamplingConfig) -> SamplingConfig:
    """Returns the sampling with a random seed, if it samples and has none.

    An engine gives every request without a seed the same one, so each round would draw the same numbers
    again.
    """
    if sampling.is_greedy or sampling.seed is not None:
        return sampling
    return replace(sampling, seed=secrets.randbelow(NUM_SEEDS))


def of_sequence(sampling: SamplingConfig, index: int) -> SamplingConfig:
    """Returns the sampling of completion `index`, from 0, of several of one prompt.

    The seeds are 2^40 apart, where TensorRT-LLM's are 1 apart (`createChildRequest` of
    `batch_manager/llmRequest.cpp`): the tokens of one completion use seeds that are 1 apart, so a neighbour
    would draw the same numbers, a token later.
    """
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + index * SEQUENCES_APART) % NUM_SEEDS)


def at_token(sampling: SamplingConfig, position: int) -> SamplingConfig:
    """Returns the sampling of a request that starts with token `position` of a completion.

    Draft and target get the same one: both then draw the same number for the same token, which makes them
    agree more often. The output is the target's own sample all the same.
    """
    if sampling.is_greedy or sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + position) % NUM_SEEDS)
