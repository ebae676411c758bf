"""Computes how many tokens one iteration of an engine holds; pure.

A round sends the whole sequence again, though most of it is in the KV cache. TensorRT-LLM 1.0 to 1.2 counts
it whole when it fills an iteration with requests (`batch_manager/microBatchScheduler.cpp`), because it learns
only afterwards how much is reused. A sequence that does not fit waits for the next iteration. With chunked
context, part of it is read in this one, and the drafts of sequences that do fit are discarded to make room
(`fitDraftTokens`): each verification then brings one token. Without chunked context no draft is discarded,
but every sequence must fit into one iteration.
"""

from __future__ import annotations

from collections.abc import Callable

from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.resolved import Chooser

# `trtllm-build`'s default, and the number above which it expects no gain.
MAX_NUM_TOKENS, MOST_NUM_TOKENS = 8192, 16384


def least_num_tokens(options: BuildOptions) -> int:
    """Returns the smallest number that is ever chosen: enough to verify a draft of every request."""
    return max(MAX_NUM_TOKENS, options.num_verified_tokens)


def choose_num_tokens(choose: Chooser, target: BuildOptions, affordable: Callable[[int], bool] | None) -> int:
    """Returns `max_num_tokens`; raises RecipeError if it is too small for a verification of every request.

    `affordable` says whether the GPUs have room for iterations of so many tokens; it is None for the torch
    backend, which reads a sequence in parts of any size.
    """
    needed = target.num_verified_tokens
    default, reason = least_num_tokens(target), "trtllm-build's default"
    if affordable:
        default, reason = _widest(target, affordable)
    if default == needed:
        reason = "one verification of every request"
    tokens: int = choose("engine.max_num_tokens", default, reason)
    if tokens < needed:
        batch, drafts = target.max_batch_size, target.max_draft_len
        problem = (
            f"{tokens} is too small: {batch} requests of {drafts} draft tokens and one more need {needed}"
        )
        raise choose.error("engine.max_num_tokens", problem, f"set at least {needed}, or remove this line")
    return tokens


def choose_chunked_context(choose: Chooser, target: BuildOptions) -> bool:
    """Says whether the target has chunked context; raises RecipeError if it needs what the recipe forbids."""
    tokens, longest = target.max_num_tokens, _longest(target)
    holds = tokens >= longest
    reason = "an iteration holds the longest sequence, so no draft is discarded"
    if not holds:
        reason = (
            f"sequences may exceed an iteration; {target.max_batch_size} requests lose drafts from "
            f"{_text(target, tokens):,} tokens each"
        )
    chunked: bool = choose("engine.enable_chunked_context", not holds, reason)
    if not chunked and not holds:
        need = f"the longest sequence and a draft, {longest} tokens"
        problem = f"without it, max_num_tokens {tokens} must hold {need}"
        repair = f"write true, or set max_num_tokens: {longest}"
        raise choose.error("engine.enable_chunked_context", problem, repair)
    return chunked


def _widest(target: BuildOptions, affordable: Callable[[int], bool]) -> tuple[int, str]:
    """Returns the largest useful and affordable number of tokens, and the reason."""
    least, longest = least_num_tokens(target), _longest(target)
    everything = target.max_batch_size * longest
    wishes = sorted({min(max(MOST_NUM_TOKENS, longest), everything), MOST_NUM_TOKENS, longest}, reverse=True)
    wishes = [tokens for tokens in wishes if least < tokens <= everything]
    tokens = next(filter(affordable, wishes), least)
    if tokens == everything:
        return tokens, "every request at its longest"
    if wishes and tokens < wishes[0]:
        return tokens, "more would cost over a tenth of the KV cache"
    if not wishes:
        return tokens, "trtllm-build's default"
    sequences = f"{target.max_batch_size} sequences of {_text(target, tokens):,} tokens at once"
    return tokens, f"{sequences}: an iteration counts them whole"


def _longest(target: BuildOptions) -> int:
    """Returns the tokens of the longest sequence and a draft, to which the builder sets `max_seq_len`."""
    return target.max_seq_len + target.max_draft_len


def _text(target: BuildOptions, tokens: int) -> int:
    """Returns the longest sequence that every request may have at the same time, each with a draft."""
    return tokens // target.max_batch_size - target.max_draft_len
