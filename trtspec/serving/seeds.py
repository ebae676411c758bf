"""The seeds of a completion's requests, which choose their random numbers."""

from __future__ import annotations

import secrets
from dataclasses import replace

from trtspec.serving.executor import SamplingConfig

NUM_SEEDS = 2**64
SEQUENCES_APART = 2**40


def with_seed(sampling: SamplingConfig) -> SamplingConfig:
    """Returns the options with a random seed, if they sample and have none.

    An engine gives every request without a seed the same one, so all rounds would draw the same numbers.
    """
    if sampling.is_greedy or sampling.seed is not None:
        return sampling
    return replace(sampling, seed=secrets.randbelow(NUM_SEEDS))


def of_sequence(sampling: SamplingConfig, index: int) -> SamplingConfig:
    """Returns the options of completion `index`, from 0, of several of one prompt.

    The seeds are 2^40 apart. TensorRT-LLM's are 1 apart (`createChildRequest` of
    `batch_manager/llmRequest.cpp`), but so are the seeds of one completion's tokens here: the next
    completion would draw the same numbers, a token later.
    """
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + index * SEQUENCES_APART) % NUM_SEEDS)


def at_token(sampling: SamplingConfig, position: int) -> SamplingConfig:
    """Returns the options of a request that starts with token `position` of a completion.

    Draft and target get the same options, so both draw the same number for the same token and agree more
    often. The output still has the target's own distribution.
    """
    if sampling.is_greedy or sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + position) % NUM_SEEDS)
