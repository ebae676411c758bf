"""Describes the Llama-like families: RMS norms, rotary positions, grouped queries, a gated SiLU, or experts.

Experts are those of TensorRT-LLM's `layers/moe.py`. Its matrices are those of one MLP with one more
dimension, for the experts: `mlp.fc` holds up and gate projection, in this order, and the second goes through
the activation. `mlp.router` is float32 in every checkpoint. Ranks share every expert (`moe_tp_size` is
`tp_size`), as NVIDIA ModelOpt exports them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.families.family import ConfigKey, FamilyTensor, Split, TensorPart
from trtspec.models.sizes import Sizes
from trtspec.models.source import Source

# Rope types that TensorRT-LLM computes as transformers does (`create_attention_const_params` of its
# layers/attention.py), and the numbers that a config must have, since the defaults of the two differ. Of
# others `dynamic` is left out: in TensorRT-LLM it multiplies the frequencies with the factor, or needs an
# `alpha`.
ROPE_TYPES = {
    "linear": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
# The supported keys of `yarn`: TensorRT-LLM has no `attention_factor`, and reads only one of the two `mscale`
# keys.
OF_YARN = {"type", "rope_type", "beta_fast", "beta_slow", *ROPE_TYPES["yarn"]}
NO_BIASES = ConfigKey(
    "attn_bias",
    value=False,
    default=False,
    otherwise="TensorRT-LLM would add biases that this family lacks",
)
SWIGLU = ConfigKey(
    "hidden_act", value="swiglu", default="gelu", otherwise="TensorRT-LLM would leave out the gate"
)

SLIDING = "sliding_attention"


def check(source: Source, *, activation: str = "silu", own_positions: bool = False) -> None:
    """Raises ModelError for a model that no Llama-like family converts correctly.

    With `own_positions` the family checks its rotary positions itself.
    """
    config = source.folder / "config.json"
    if source.hidden_act != activation:
        problem = f"hidden_act is {source.hidden_act}, but {source.architecture} needs {activation}"
        raise ModelError(config, problem)
    if source.attention_bias or source.mlp_bias:
        raise ModelError(config, f"attention_bias and mlp_bias are not supported for {source.architecture}")
    heads, shared = source.num_attention_heads, source.num_key_value_heads
    if heads % shared:
        raise ModelError(config, f"{heads} attention heads over {shared} key-value heads do not divide")
    if own_positions:
        return
    if source.partial_rotary_factor != 1.0:
        problem = f"partial_rotary_factor is {source.partial_rotary_factor:g}, not 1"
        raise ModelError(config, problem)
    if source.rotary_scaling is not None:
        _check_rope(config, source.rotary_scaling)


def _check_rope(config: Path, scaling: Mapping[str, Any]) -> None:
    kinds = {str(scaling[key]) for key in ("rope_type", "type") if key in scaling}
    kind = " and ".join(sorted(kinds))
    if kind not in ROPE_TYPES:
        problem = f"rope type {kind!r}" if kind else "rope_scaling without a rope_type"
        raise ModelError(config, f"{problem} is not one of {', '.join(ROPE_TYPES)}")
    for key in ROPE_TYPES[kind]:
        number = scaling.get(key)
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < inf:
            raise ModelError(config, f"{key} of rope type {kind!r} must be a positive number, not {number!r}")
    others = sorted(scaling.keys() - OF_YARN) if kind == "yarn" else []
    if others:
        problem = f"{', '.join(others)} of rope type 'yarn': TensorRT-LLM ignores it and uses the default"
        raise ModelError(config, problem)


Mlp = Callable[[Sizes, int], Iterator[FamilyTensor]]


def weights(
    sizes: Sizes,
    *,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    stacked: bool = False,
    mlp: Mlp | None = None,
    shift: float = 0.0,
    sandwich: bool = False,
) -> Iterator[FamilyTensor]:
    """Yields every tensor of the checkpoint. Matrices are [out, in] in both formats, and none is transposed.

    `qkv_bias` adds the biases of q, k and v, `qk_norm` the norms of q and k. `stacked` is for models whose q,
    k and v are one tensor; gate and up projection are then one too, and TensorRT-LLM has `mlp.fc` for both.
    `mlp` yields the tensors that replace the usual MLP. `shift` is added to the weights of norms, and
    `sandwich` adds the norms after attention and MLP.
    """
    hidden, vocabulary = sizes.hidden_size, sizes.vocab_size
    embedding = TensorPart("model.embed_tokens.weight", (vocabulary, hidden), Split.VOCAB)
    yield FamilyTensor("transformer.vocab_embedding.weight", (embedding,))
    for layer in range(sizes.num_hidden_layers):
        yield norm("input_layernorm", "input_layernorm", hidden, layer, shift)
        yield from _attention(sizes, layer, qkv_bias=qkv_bias, stacked=stacked)
        if qk_norm:
            yield norm("attention.q_layernorm", "self_attn.q_norm", sizes.head_size, layer, shift)
            yield norm("attention.k_layernorm", "self_attn.k_norm", sizes.head_size, layer, shift)
        yield norm("post_layernorm", "post_attention_layernorm", hidden, layer, shift)
        if sandwich:
            for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
                yield norm(name, name, hidden, layer, shift)
        yield from mlp(sizes, layer) if mlp else _mlp(sizes, layer, stacked=stacked)
    yield FamilyTensor("transformer.ln_f.weight", (TensorPart("model.norm.weight", (hidden,)),), shift=shift)
    tied = sizes.tie_word_embeddings
    head = embedding if tied else TensorPart("lm_head.weight", (vocabulary, hidden), Split.VOCAB)
    yield FamilyTensor("lm_head.weight", (head,))


def linear(name: str, layer: int, *parts: TensorPart) -> FamilyTensor:
    """A matrix of a decoder layer, which FP8 quantizes."""
    return FamilyTensor(f"{name}.weight", parts, layer, linear=True)


def norm(name: str, theirs: str, size: int, layer: int, shift: float = 0.0) -> FamilyTensor:
    """A norm of a decoder layer, by its name and Hugging Face's."""
    return FamilyTensor(f"{name}.weight", (part(layer, f"{theirs}.weight", (size,)),), layer, shift=shift)


def part(
    layer: int, name: str, shape: tuple[int, ...], split: Split = Split.WHOLE, first: int = 0
) -> TensorPart:
    """Rows of a Hugging Face tensor of a decoder layer, by its name within the layer."""
    return TensorPart(f"model.layers.{layer}.{name}", shape, split, first)


def _attention(sizes: Sizes, layer: int, *, qkv_bias: bool, stacked: bool) -> Iterator[FamilyTensor]:
    hidden, head = sizes.hidden_size, sizes.head_size
    queries, keys = sizes.num_attention_heads * head, sizes.num_key_value_heads * head
    q_k_v = (("q", queries), ("k", keys), ("v", keys))
    if stacked:
        stack, rows_at = "self_attn.qkv_proj.weight", ((queries, 0), (keys, queries), (keys, queries + keys))
        projections = [part(layer, stack, (rows, hidden), Split.HEADS, first) for rows, first in rows_at]
    else:
        projections = [
            part(layer, f"self_attn.{x}_proj.weight", (rows, hidden), Split.HEADS) for x, rows in q_k_v
        ]
    yield linear("attention.qkv", layer, *projections)
    if qkv_bias:
        biases = [part(layer, f"self_attn.{x}_proj.bias", (rows,), Split.HEADS) for x, rows in q_k_v]
        yield FamilyTensor("attention.qkv.bias", tuple(biases), layer)
    output = part(layer, "self_attn.o_proj.weight", (hidden, queries), Split.COLUMNS)
    yield linear("attention.dense", layer, output)


def _mlp(sizes: Sizes, layer: int, *, stacked: bool) -> Iterator[FamilyTensor]:
    wide = sizes.intermediate_size, sizes.hidden_size
    if stacked:
        # The half for the activation comes first in Hugging Face's stack and second in TensorRT-LLM's
        # (`swiglu` of its functional.py).
        halves = [part(layer, "mlp.gate_up_proj.weight", wide, Split.ROWS, first) for first in (wide[0], 0)]
        yield linear("mlp.fc", layer, *halves)
    else:
        # In TensorRT-LLM `fc` goes through the activation and is multiplied with `gate`.
        yield linear("mlp.fc", layer, part(layer, "mlp.gate_proj.weight", wide, Split.ROWS))
        yield linear("mlp.gate", layer, part(layer, "mlp.up_proj.weight", wide, Split.ROWS))
    yield linear("mlp.proj", layer, part(layer, "mlp.down_proj.weight", wide[::-1], Split.COLUMNS))


def config(source: Source) -> dict[str, Any]:
    """The keys that TensorRT-LLM's LLaMA and QWen configurations share."""
    return {
        "mlp_bias": False,
        "rotary_base": source.rotary_base,
        "rotary_scaling": dict(source.rotary_scaling) if source.rotary_scaling is not None else None,
        "disable_weight_only_quant_plugin": False,
        "tie_word_embeddings": source.tie_word_embeddings,
    }


def window(source: Source, default: int | None) -> int | None:
    """The sliding window of all layers in tokens, None if they have none.

    `default` is the window of a config that does not name one. Raises ModelError if layers differ.
    """
    config, layers = source.config, source.num_hidden_layers
    window = config.content.get("sliding_window", default)
    if window is None:
        return None
    kinds = config.get("layer_types", list, [SLIDING] * layers)
    if kinds.count(SLIDING) != layers:
        some = f"{kinds.count(SLIDING)} of {layers} layers have a sliding window"
        raise ModelError(config.file, f"{some}; supported for {source.architecture}: all or none")
    return config.size("sliding_window", window)


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Hugging Face's names of the parts of a mixture of experts."""

    block: str
    """The module in place of the MLP."""
    gate: str = "gate_proj"
    """The gate matrix of each expert; the next two are its other matrices."""
    up: str = "up_proj"
    down: str = "down_proj"

    def weights(self, sizes: Sizes, layer: int) -> Iterator[FamilyTensor]:
        """Yields the router and the experts of a layer, and the shared expert if there is one."""
        experts, hidden = sizes.experts, sizes.hidden_size
        assert experts is not None
        router = part(layer, f"{self.block}.gate.weight", (experts.count, hidden))
        yield FamilyTensor("mlp.router.weight", (router,), layer, dtype="F32")
        folders = [f"{self.block}.experts.{number}" for number in range(experts.count)]
        for name, parts in self._matrices(layer, folders, experts.intermediate_size, hidden).items():
            yield FamilyTensor(f"mlp.{name}.weight", parts, layer, linear=True, experts=experts.count)
        if width := experts.shared_intermediate_size:
            shared = self._matrices(layer, [f"{self.block}.shared_expert"], width, hidden)
            for name, parts in shared.items():
                yield linear(f"mlp.shared_expert.{name}", layer, *parts)
            gate = part(layer, f"{self.block}.shared_expert_gate.weight", (1, hidden))
            yield FamilyTensor("mlp.shared_expert_gate.weight", (gate,), layer)

    def _matrices(
        self, layer: int, folders: list[str], width: int, hidden: int
    ) -> dict[str, tuple[TensorPart, ...]]:
        wide, tall = (width, hidden), (hidden, width)
        return {
            "fc": tuple(
                part(layer, f"{folder}.{name}.weight", wide, Split.ROWS)
                for folder in folders
                for name in (self.up, self.gate)
            ),
            "proj": tuple(
                part(layer, f"{folder}.{self.down}.weight", tall, Split.COLUMNS) for folder in folders
            ),
        }


def moe_config(source: Source, *, renormalized: bool) -> dict[str, Any]:
    """The keys of TensorRT-LLM's `MoeConfig`; `renormalized`: the chosen experts' shares add up to 1."""
    experts = source.experts
    assert experts is not None
    chosen = {"num_experts": experts.count, "top_k": experts.chosen}
    return {"moe": {**chosen, "normalization_mode": int(renormalized)}}
