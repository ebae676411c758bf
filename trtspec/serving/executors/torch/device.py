"""The device of an engine, and the tokens of KV cache that fit into its memory beside the weights."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executors.torch.budget import AHEAD, TEXTS, KvNeed, dependent_kv_bytes, kv_tokens
from trtspec.serving.executors.torch.dependents.loading import dependent_forms
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.host import look
from trtspec.serving.executors.torch.weights import forms

log = logging.getLogger(__name__)

CPU = "cpu"


def find_device(named: str | None) -> str:
    """Returns PyTorch's name of the device `named`; None stands for the first GPU, or the CPU without one.

    On a machine without GPUs it is always the CPU, as for the target. Raises `EngineLoadError` for a GPU that
    a machine with other GPUs lacks.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if named == CPU or not count:
        if named not in (CPU, None):
            log.warning("neither %s nor any other GPU is here: the engine runs on the CPU", named)
        return CPU
    number = int(named.partition(":")[2]) if named else 0
    if number >= count:
        raise EngineLoadError("device", f"there is no {named}: GPUs that PyTorch sees: {count}")
    return f"cuda:{number}"


GIB = 1 << 30


def kv_tokens_of(configs: Sequence[TorchEngineConfig], device: str, shared: int = 0) -> int:
    """Returns the tokens of each cache of engines that are about to be loaded together.

    The engines share `shared` bytes of their weights. Raises `EngineLoadError` if not even one sequence of
    full length fits.
    """
    free, weights = _free(device), sum(_weights(config) for config in configs) - shared
    needs = [_need(config) for config in configs]
    tokens = kv_tokens(free - weights, device.split(":")[0], needs)
    longest = max(need.max_seq_len for need in needs)
    if tokens < longest:
        one = AHEAD * longest * sum(need.bytes_per_token for need in needs)
        raise EngineLoadError(
            f"the KV cache on {device}",
            f"holds {tokens} tokens, less than one sequence of {longest} (max_seq_len), which takes"
            f" {one / GIB:.2f} GiB: {free / GIB:.2f} GiB are free, and the weights take"
            f" {weights / GIB:.2f}; a smaller max_seq_len or more memory help",
        )
    return tokens


def _need(config: TorchEngineConfig) -> KvNeed:
    item, limits = config.dtype.itemsize, config.limits
    size = 2 * config.num_layers * config.num_kv_heads * config.head_size * item
    if config.draft is not None:
        size = dependent_kv_bytes(config.draft["method"], config.hidden_size, size, item)
    return KvNeed(size, TEXTS * limits.max_batch_size, limits.max_seq_len)


def _weights(config: TorchEngineConfig) -> int:
    """Returns the bytes of the weights. Float8 ones are expanded to the model's dtype at loading."""
    wanted = forms(config) if config.draft is None else dependent_forms(config)
    return sum(math.prod(form.shape) for form in wanted.values()) * config.dtype.itemsize


def _free(device: str) -> int:
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return look().memory
