"""Llama (Touvron et al. 2023, arXiv 2302.13971) and similar models, over the new rows of many sequences.

The others are Mistral with its sliding window (Jiang et al. 2023, arXiv 2310.06825), Mixtral with experts
(arXiv 2401.04088), Qwen2 with biases of q, k and v (arXiv 2407.10671), Qwen3 with norms of q and k (arXiv
2505.09388), Phi-3 with stacked matrices (Abdin et al. 2024, arXiv 2404.14219), Gemma 2 and 3 with norms on
both sides and a window in some layers (arXiv 2408.00118, 2503.19786), and Granite with four factors (Shen et
al. 2024, arXiv 2408.13359). Rotary position embedding (Su et al. 2021, arXiv 2104.09864) is a product of
complex numbers. FP8 models round the input of each product and, if they were built so, keys
and values in the cache.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executors.torch.cache import Cache, CacheView
from trtspec.serving.executors.torch.engine import ExpertConfig, TorchEngineConfig
from trtspec.serving.executors.torch.kernels.kernel import Gate, has_kernels
from trtspec.serving.executors.torch.linear import (
    E4M3,
    Matrix,
    NormedLinear,
    Pack,
    SharedWeights,
    expert_matrices,
    linear,
    matrix,
    packed,
    stacked,
    swap_halves,
)
from trtspec.serving.executors.torch.spans import Span

Scale = Callable[[Tensor, float, dict[str, Any]], tuple[Tensor, float]]


def rotations(
    head_size: int,
    base: float,
    scaling: dict[str, Any] | None,
    length: int,
    device: torch.device,
    share: float = 1.0,
) -> Tensor:
    """Returns the rotation of each pair of a head by position: complex64 `[length, 1, head_size / 2]`.

    With the scaling `yarn` or `longrope` it also scales the pairs. Only the first `share` of each head is
    rotated; the rotation of other pairs is 1.
    """
    turned = int(head_size * share)
    turns = 1 / torch.tensor(base) ** (torch.arange(0, turned, 2).float() / turned)
    turns, size = _scaled(turns, base, scaling, length)
    angles = torch.outer(torch.arange(length).float(), turns)
    rest = torch.ones(length, (head_size - turned) // 2, dtype=torch.complex64)
    return torch.cat([torch.polar(torch.full_like(angles, size), angles), rest], 1).unsqueeze(1).to(device)


def pair_up(rows: Tensor, heads: int, share: float = 1.0) -> Tensor:
    """Returns the rows of a q or k projection, reordered so that the two elements of a pair are neighbours.

    A pair has an element of each half of the first `share` of a head. A complex product needs neighbours.
    Attention does not depend on the order of a head's elements, which is the same in q and k.
    """
    whole = rows.view(heads, -1, *rows.shape[1:])
    turned = int(whole.shape[1] * share)
    pairs = whole[:, :turned].reshape(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).flatten(1, 2)
    return torch.cat([pairs, whole[:, turned:]], 1).reshape(rows.shape)


def rotate(heads: Tensor, rotation: Tensor) -> None:
    """Rotates `heads` `[rows, heads, head_size]` in place by `rotation` `[rows, 1, head_size / 2]`."""
    single = heads.float()
    torch.view_as_complex(single.view(*single.shape[:2], -1, 2)).mul_(rotation)
    if single is not heads:
        heads.copy_(single)


def _scaled(turns: Tensor, base: float, scaling: dict[str, Any] | None, length: int) -> tuple[Tensor, float]:
    """Returns the turns per position for a longer context, and what a pair's length is multiplied with.

    `scaling` is Hugging Face's `rope_scaling`, and the longest text has `length` tokens.
    """
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    kinds: dict[str, Scale] = {
        "linear": lambda turns, _, scaling: (turns / float(scaling["factor"]), 1.0),
        "llama3": _llama3,
        "yarn": _yarn,
        "longrope": partial(_longrope, length=length),
    }
    scale = kinds.get(kind)
    if kind == "default":
        return turns, 1.0
    if scale is None:
        raise EngineLoadError("rotary_scaling", f"rope_type {kind!r} is not linear, llama3, yarn or longrope")
    try:
        return scale(turns, base, scaling)
    except KeyError as missing:
        raise EngineLoadError("rotary_scaling", f"{missing} is missing for rope_type {kind!r}") from None


def _llama3(turns: Tensor, base: float, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    """Llama 3.1: long waves are stretched, short ones kept, those between blended."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    context = float(scaling["original_max_position_embeddings"])
    blend = ((context * turns / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return turns * (blend + (1 - blend) / float(scaling["factor"])), 1.0


def _yarn(turns: Tensor, base: float, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023, arXiv 2309.00071): pairs are blended by how often they turn in the context."""
    factor, context = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    pairs = turns.shape[0]

    def pair(rotations: float) -> float:
        """Returns which pair turns so often within the context."""
        return pairs * math.log(context / (rotations * 2 * math.pi)) / math.log(base)

    first = max(math.floor(pair(float(scaling.get("beta_fast", 32.0)))), 0)
    last = min(math.ceil(pair(float(scaling.get("beta_slow", 1.0)))), 2 * pairs - 1)
    kept = 1 - ((torch.arange(pairs).float() - first) / max(last - first, 0.001)).clamp(0, 1)
    size = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return turns * (kept + (1 - kept) / factor), size


def _longrope(turns: Tensor, base: float, scaling: dict[str, Any], length: int) -> tuple[Tensor, float]:
    """LongRoPE (Ding et al. 2024, arXiv 2402.13753): a factor for each pair, and one size for all.

    transformers switches to the long factors once a sequence is long, and computes all its keys anew. Here
    other sequences and later rounds reuse cached keys, so an engine for long sequences always uses the long
    factors, as vLLM does (`phi3_long_rope_scaled_rope.py`).
    """
    context, factor = float(scaling["original_max_position_embeddings"]), float(scaling["factor"])
    factors = torch.tensor(scaling["long_factor" if length > context else "short_factor"])
    size = math.sqrt(1 + math.log(factor) / math.log(context)) if factor > 1 else 1.0
    return turns / factors, size


Tensors = dict[str, Tensor]


class StepModel(Protocol):
    """Runs the forward pass of a step."""

    def forward(self, token_ids: list[int], spans: Sequence[Span], wanted: list[int]) -> Tensor:
        """Returns the logits `[len(wanted), vocab_size]` after the rows `wanted`, which are in order.

        `token_ids` are the rows of all spans, in their order.
        """


class Listens(Protocol):
    """Receives the hidden states of a model as it computes them."""

    depths: Sequence[int]
    """The layers after which states are taken, in order; 0 is the embedding. The last ones are normalized."""

    def hear(self, states: Sequence[Tensor], spans: Sequence[Span]) -> None:
        """Takes the states of each depth, `[rows, hidden_size]` for the rows of all spans."""


class Decoder:
    """A model with packed weights, which writes the cache of the rows that it computes.

    `shared` has the weights of other engines, which may be the same. The `listener` gets the hidden states of
    every step.
    """

    def __init__(
        self,
        config: TorchEngineConfig,
        tensors: Tensors,
        cache: Cache,
        device: torch.device,
        shared: SharedWeights | None = None,
    ) -> None:
        pack = packed if shared is None else shared.pack
        self.listener: Listens | None = None
        self._device, self._cache = device, cache
        size, length, local = config.head_size, config.limits.max_seq_len, config.local
        self._rotations = rotations(
            size, config.rotary_base, config.rotary_scaling, length, device, config.rotary_share
        )
        self._local_rotations = self._rotations
        if local is not None and local.rotary_base is not None:
            self._local_rotations = rotations(size, local.rotary_base, None, length, device)
        self._embedding_scale = config.embedding_scale
        self._logit_scale, self._logit_cap = config.logit_scale, config.logit_cap
        embedding, head = tensors["transformer.vocab_embedding.weight"], tensors["lm_head.weight"]
        self.embedding = embedding if shared is None else shared.tensor(embedding)
        """The embedding of the vocabulary, `[vocab_size, hidden_size]`."""
        if torch.equal(head, self.embedding):  # The two are tied. Unless the head is packed, one is enough.
            head = self.embedding
        self._layers = [DecoderLayer(config, tensors, index, pack) for index in range(config.num_layers)]
        self._head = NormedLinear(tensors["transformer.ln_f.weight"], Matrix(head), config.norm_epsilon, pack)

    def logits(self, states: Tensor) -> Tensor:
        """Returns the logits `[rows, vocab_size]` of normalized `states` `[rows, hidden_size]`."""
        return self._bounded(self._head.product(states))

    def only(self, layers: Sequence[int]) -> Decoder:
        """Returns this model with these layers alone, which shares weights and cache with it."""
        part = copy.copy(self)
        part.listener, part._layers = None, [self._layers[index] for index in layers]
        return part

    def forward(self, token_ids: list[int], spans: Sequence[Span], wanted: list[int]) -> Tensor:
        """Implements `StepModel.forward`."""
        views = self._cache.views(spans)
        rotation = local = _cut(self._rotations, spans)
        if self._local_rotations is not self._rotations:
            local = _cut(self._local_rotations, spans)
        x = F.embedding(torch.tensor(token_ids, device=self._device), self.embedding)
        if self._embedding_scale != 1:
            x = x * self._embedding_scale
        depths, states = self.listener.depths if self.listener else (), []
        for depth, layer in enumerate(self._layers):
            if depth in depths:
                states.append(x)
            x = layer.forward(x, local if layer.is_local else rotation, views)
        if self.listener is not None:
            if len(self._layers) in depths:
                states.append(self._head.norm(x))
            self.listener.hear(states, spans)
        if not wanted:
            return x.new_empty(0, self.embedding.shape[0])
        if len(wanted) < len(token_ids):
            x = x[torch.tensor(wanted, device=self._device)]
        return self._bounded(self._head(x))

    def _bounded(self, logits: Tensor) -> Tensor:
        if self._logit_scale != 1:
            logits = logits * self._logit_scale
        if self._logit_cap is None:
            return logits
        return torch.tanh(logits / self._logit_cap) * self._logit_cap


def _cut(rotations: Tensor, spans: Sequence[Span]) -> Tensor:
    """Returns the rotations of the rows of all spans."""
    return torch.cat([rotations[span.start : span.start + span.rows] for span in spans])


def _same(x: Tensor) -> Tensor:
    return x


def _norm(weight: Tensor, epsilon: float) -> Callable[[Tensor], Tensor]:
    return partial(F.rms_norm, normalized_shape=weight.shape, weight=weight, eps=epsilon)


class DecoderLayer:
    """One decoder layer. Without an `input_layernorm` its attention reads unnormalized states."""

    def __init__(self, config: TorchEngineConfig, tensors: Tensors, index: int, pack: Pack) -> None:
        layer, dtype = f"transformer.layers.{index}", config.dtype
        self._index, self._head_size, self._heads = index, config.head_size, config.num_heads
        self._turned, self._epsilon = config.num_heads + config.num_kv_heads, config.norm_epsilon
        border = self._turned * config.head_size

        def paired(rows: Tensor) -> Tensor:
            return torch.cat([pair_up(rows[:border], self._turned, config.rotary_share), rows[border:]])

        qkv = matrix(tensors, f"{layer}.attention.qkv", dtype).reordered(paired)
        norm = tensors.get(f"{layer}.input_layernorm.weight")
        self._qkv = linear(qkv, pack) if norm is None else NormedLinear(norm, qkv, self._epsilon, pack)
        self._dense = linear(matrix(tensors, f"{layer}.attention.dense", dtype), pack)
        self._mlp = mlp(config, tensors, layer, pack)
        self._query_scale = config.query_scale
        self.is_local = config.local is not None and config.local.has(index)
        self._after_attention: Callable[[Tensor], Tensor] = _same
        self._after_mlp: Callable[[Tensor], Tensor] = _same
        if config.norms_after:
            self._after_attention, self._after_mlp = (
                _norm(tensors[f"{layer}.{name}.weight"], self._epsilon)
                for name in ("post_layernorm", "post_feedforward_layernorm")
            )
        elif config.residual_scale != 1:
            self._after_attention = self._after_mlp = partial(torch.mul, other=config.residual_scale)
        self._head_norms: Tensor | None = None
        if config.qk_norm:
            q, k = (pair_up(tensors[f"{layer}.attention.{part}_layernorm.weight"], 1) for part in "qk")
            self._head_norms = torch.stack([q] * config.num_heads + [k] * config.num_kv_heads)
        self._quantize_kv: E4M3 | None = None
        if config.fp8_kv_cache:
            self._quantize_kv = E4M3(float(tensors[f"{layer}.attention.kv_cache_scaling_factor"]), dtype)

    def forward(
        self, x: Tensor, rotation: Tensor, views: Sequence[CacheView], read: Tensor | None = None
    ) -> Tensor:
        """Returns the states after the layer. Its attention reads `read` in place of `x` if it is given."""
        x = self._after_attention(self._attention(x if read is None else read, rotation, views)).add_(x)
        return self._after_mlp(self._mlp(x)).add_(x)

    def _attention(self, x: Tensor, rotation: Tensor, views: Sequence[CacheView]) -> Tensor:
        heads = self._qkv(x).view(x.shape[0], -1, self._head_size)
        turned = heads[:, : self._turned]
        if self._head_norms is not None:
            normed = F.rms_norm(turned, turned.shape[-1:], None, self._epsilon)
            torch.mul(normed, self._head_norms, out=turned)
        rotate(turned, rotation)
        if self._query_scale != 1:
            heads[:, : self._heads].mul_(self._query_scale)
        if self._quantize_kv is not None:
            keys_values = heads[:, self._heads :]
            keys_values.copy_(self._quantize_kv(keys_values))
        if len(views) == 1:
            return self._dense(views[0].attend(self._index, heads))
        parts = zip(views, torch.split(heads, [view.rows for view in views]), strict=True)
        return self._dense(torch.cat([view.attend(self._index, part) for view, part in parts]))


def mlp(config: TorchEngineConfig, tensors: Tensors, layer: str, pack: Pack) -> Callable[[Tensor], Tensor]:
    """Returns the function from `[rows, hidden]` to `[rows, hidden]`, the norm before it included."""
    if config.experts is None:
        return GatedMlp(config, tensors, layer, pack)
    return Mixture(config, config.experts, tensors, layer, pack)


class GatedMlp:
    """Computes `proj(activation(fc(x)) * gate(x))` of normed rows. The activation is a SiLU or a GELU."""

    def __init__(self, config: TorchEngineConfig, tensors: Tensors, layer: str, pack: Pack) -> None:
        dtype = config.dtype
        if config.fused_gate:
            fc_gate = matrix(tensors, f"{layer}.mlp.fc", dtype).reordered(swap_halves)
        else:
            fc_gate = stacked(tensors, (f"{layer}.mlp.fc", f"{layer}.mlp.gate"), dtype)
        before = "pre_feedforward_layernorm" if config.norms_after else "post_layernorm"
        norm = tensors[f"{layer}.{before}.weight"]
        self._fc_gate = NormedLinear(norm, fc_gate, config.norm_epsilon, pack)
        self._gated: Callable[[Tensor], Tensor] = partial(_gated, gelu=config.gelu)
        if has_kernels(norm.device) and not config.gelu:
            self._gated = Gate(dtype)
        self._proj = linear(matrix(tensors, f"{layer}.mlp.proj", dtype), pack)

    def __call__(self, x: Tensor) -> Tensor:
        return self._proj(self._gated(self._fc_gate(x)))


def _gated(x: Tensor, gelu: bool) -> Tensor:
    """Returns `activation(a) * b`, `[rows, width]`, for `x` `[rows, 2 * width]` of `a` and then `b`."""
    a, b = x.chunk(2, -1)
    return (F.gelu(a, approximate="tanh") if gelu else F.silu(a)).mul_(b)


class Mixture:
    """Computes each row with the experts that the router chooses, and adds up their weighted results.

    As in TensorRT-LLM (`layers/moe.py`) the router computes in float32. Only the weights of chosen experts
    are read.
    """

    def __init__(
        self, config: TorchEngineConfig, experts: ExpertConfig, tensors: Tensors, layer: str, pack: Pack
    ) -> None:
        self._norm, self._epsilon = tensors[f"{layer}.post_layernorm.weight"], config.norm_epsilon
        self._router = tensors[f"{layer}.mlp.router.weight"]
        self._chosen, self._renormalized = experts.chosen, experts.renormalized
        fcs, projs = (expert_matrices(tensors, f"{layer}.mlp.{x}", config.dtype) for x in ("fc", "proj"))
        self._experts = [_Expert(fc, proj, pack) for fc, proj in zip(fcs, projs, strict=True)]
        self._shared: _Expert | None = None
        if experts.shared_width:
            shared = f"{layer}.mlp.shared_expert"
            fc, proj = (matrix(tensors, f"{shared}.{x}", config.dtype) for x in ("fc", "proj"))
            self._shared = _Expert(fc, proj, pack)
            self._shared_gate = tensors[f"{shared}_gate.weight"]

    def __call__(self, x: Tensor) -> Tensor:
        x = F.rms_norm(x, self._norm.shape, self._norm, self._epsilon)
        shares, chosen = F.linear(x.float(), self._router).softmax(-1).topk(self._chosen)
        if self._renormalized:
            shares = shares / shares.sum(-1, keepdim=True)
        if self._shared is None:
            result = torch.zeros_like(x)
        else:
            result = self._shared(x) * torch.sigmoid(F.linear(x, self._shared_gate))
        for number in sorted(set(chosen.flatten().tolist())):
            rows, ranks = (chosen == number).nonzero(as_tuple=True)
            weighted = self._experts[number](x[rows]) * shares[rows, ranks, None]
            result.index_add_(0, rows, weighted.to(x.dtype))
        return result


class _Expert:
    """Computes `proj(silu(gate(x)) * up(x))`, where `fc` `[2 * width, hidden]` is up and gate in one."""

    def __init__(self, fc: Matrix, proj: Matrix, pack: Pack) -> None:
        self._fc, self._proj = linear(fc, pack), linear(proj, pack)

    def __call__(self, x: Tensor) -> Tensor:
        up, gate = self._fc(x).chunk(2, -1)
        return self._proj(F.silu(gate).mul_(up))
