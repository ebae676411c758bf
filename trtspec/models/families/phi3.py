"""Phi-3 and Phi-4 with short contexts: `Phi3ForCausalLM` as TensorRT-LLM's `models/phi3` have it.

That class is a Llama with stacked matrices and three limits: the only rope scaling that it hands to its
attention is `longrope`, it passes nothing from one pipeline rank to the next, and its heads are always
`hidden_size / num_attention_heads` wide. Each rank needs its share of both halves of `mlp.fc`, which this
conversion stacks. TensorRT-LLM's own conversion and ModelOpt's cut the whole stack instead, so that of two
ranks one gets the whole gate. A sliding window is kept in the same way as for Mistral.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from trtspec.errors import ModelError
from trtspec.models.families import decoder
from trtspec.models.families.family import Family, Key
from trtspec.models.families.window import of_all_layers
from trtspec.models.source import Source

_REPAIR = "take one without it, as microsoft/phi-4 and microsoft/Phi-3-mini-4k-instruct are"
KEYS = (
    Key("hidden_act", value="swiglu", default="gelu", otherwise="TensorRT-LLM multiplies with no gate"),
    Key(
        "rotary_pct",
        value=1.0,
        default=None,
        otherwise="TensorRT-LLM asks for the key, and turns another part of each head",
    ),
)

window = partial(of_all_layers, default=None)


def check(source: Source) -> None:
    """Raises ModelError for what this conversion would get wrong, any rope scaling included.

    `longrope` changes its frequencies in long texts, and keys that were cached before do not fit them.
    """
    file, scaling = source.config.file, source.rotary_scaling
    if scaling is not None:
        kind = scaling.get("rope_type", scaling.get("type"))
        raise ModelError(file, f"rope type {kind!r} is not supported for {source.architecture}", _REPAIR)
    decoder.check(source)
    heads, size = source.num_attention_heads, source.head_size
    if heads * size != source.hidden_size:
        problem = f"{heads} heads of {size} do not make the hidden_size, as TensorRT-LLM assumes"
        raise ModelError(file, problem)
    source.config.get("rms_norm_eps", float)  # Required, since its default is not that of other families.
    window(source)


def config(source: Source) -> dict[str, Any]:
    return {
        "rotary_base": source.rotary_base,
        "rotary_scaling": None,
        "tie_word_embeddings": source.tie_word_embeddings,
        "sliding_window": window(source),
    }


FAMILY = Family(
    name="phi3",
    check=check,
    weights=partial(decoder.weights, stacked=True),
    config=config,
    ignored=decoder.IGNORED,
    keys=KEYS,
    window=window,
    fused_gate=True,
    pipelines=False,
)
