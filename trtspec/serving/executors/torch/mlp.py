"""The second half of a decoder layer: a gated MLP, or a mixture of them (Mixtral, arXiv 2401.04088)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.executors.torch.engine import ExpertConfig, TorchEngineConfig
from trtspec.serving.executors.torch.kernels.kernel import Gate, has_kernels
from trtspec.serving.executors.torch.linear import (
    Matrix,
    NormedLinear,
    expert_matrices,
    linear,
    matrix,
    stacked,
    swap_halves,
)
from trtspec.serving.executors.torch.packed_weights import Pack

Tensors = dict[str, Tensor]


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
        before = "pre_feedforward_layernorm" if config.sandwich else "post_layernorm"
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
