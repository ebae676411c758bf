"""Phi-3 and Phi-4: `Phi3ForCausalLM` as TensorRT-LLM's `models/phi3` have it.

That class is a Llama with stacked matrices, which may rotate only a part of each head. It has three limits:
it supports only the rope scaling `longrope`, it passes nothing from one pipeline rank to the next, and its
heads are always `hidden_size / num_attention_heads` wide. Each rank needs its share of both halves of
`mlp.fc`, which this conversion stacks. TensorRT-LLM's own conversion and ModelOpt's cut the whole stack
instead, so that of two ranks one gets the whole gate. A sliding window is kept in the same way as for
Mistral.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.families import decoder, longrope
from trtspec.models.families.family import ModelFamily
from trtspec.models.source import Source


def check(source: Source) -> None:
    """Raises ModelError for models that would be converted wrongly, including rope scalings other than
    `longrope`."""
    file, share = source.config.file, source.partial_rotary_factor
    decoder.check(source, own_positions=True)
    if share > 1:
        raise ModelError(file, f"partial_rotary_factor is {share:g}, more than a whole head")
    if (turned := longrope.turned(source)) % 2:
        raise ModelError(file, f"partial_rotary_factor is {share:g}: no pairs of {turned} elements")
    longrope.check(source)
    heads, size = source.num_attention_heads, source.head_size
    if heads * size != source.hidden_size:
        problem = f"{heads} heads of {size} are not the hidden_size, but TensorRT-LLM assumes that"
        raise ModelError(file, problem)
    source.config.get("rms_norm_eps", float)  # Required, since its default is not that of other families.


def config(source: Source) -> dict[str, Any]:
    return {
        "rotary_base": source.rotary_base,
        "rotary_scaling": None,
        "rotary_pct": source.partial_rotary_factor,
        "rotary_embedding_dim": longrope.turned(source),
        **longrope.config(source),
        "tie_word_embeddings": source.tie_word_embeddings,
        "sliding_window": PHI3.window(source),
    }


PHI3 = ModelFamily(
    name="phi3",
    check=check,
    weights=partial(decoder.weights, stacked=True),
    config=config,
    keys=(decoder.SWIGLU,),
    window=partial(decoder.window, default=None),
    fused_gate=True,
    pipelines=False,
)
