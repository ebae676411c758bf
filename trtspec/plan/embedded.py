"""What a pair of the torch backend takes of the machine that runs it on its CPU; pure.

The numbers are those that the engines go by when they are loaded; what is free by then may differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.checkpoint.cast import DTYPES
from trtspec.models.tensors import ITEM_SIZE
from trtspec.plan.resolved import EnginePlan, Resolved
from trtspec.serving.executors.torch.budget import TEXTS, KvNeed, kv_tokens
from trtspec.serving.executors.torch.host import Host


@dataclass(frozen=True, slots=True)
class Embedded:
    """Bytes, and tokens of text that each of the two KV caches holds; the threads of a step, and why."""

    free: int
    weights: int
    kv_per_token: int
    tokens: int
    asked: int
    max_seq_len: int
    threads: int
    because: str

    @property
    def problem(self) -> str | None:
        """Why this cannot work, if so."""
        if self.tokens < self.max_seq_len:
            return f"the KV cache holds {self.tokens} tokens, less than one text of {self.max_seq_len}"
        return None


def embedded(resolved: Resolved, host: Host) -> Embedded | None:
    """None for the `tensorrt_llm` backend."""
    if resolved.backend != "torch":
        return None
    engines = resolved.engines.values()
    needs, weights = [_need(engine) for engine in engines], sum(_weights(engine) for engine in engines)
    threads, because = host.threads
    return Embedded(
        free=host.memory,
        weights=weights,
        kv_per_token=sum(need.bytes_per_token for need in needs),
        tokens=kv_tokens(host.memory - weights, "cpu", needs),
        asked=max(need.texts * need.max_seq_len for need in needs),
        max_seq_len=resolved.target.options.max_seq_len,
        threads=threads,
        because=because,
    )


def _need(engine: EnginePlan) -> KvNeed:
    """Of the whole model, whose ranks run on one device; a cache of float8 is kept in the model's dtype."""
    source, options = engine.model.source, engine.options
    per_layer = 2 * source.num_key_value_heads * source.head_size * _item(engine)
    return KvNeed(source.num_hidden_layers * per_layer, TEXTS * options.max_batch_size, options.max_seq_len)


def _weights(engine: EnginePlan) -> int:
    return engine.model.source.parameters * _item(engine)


def _item(engine: EnginePlan) -> int:
    return ITEM_SIZE[DTYPES[engine.checkpoint.dtype]]
