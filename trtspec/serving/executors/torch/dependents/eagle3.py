"""EAGLE-3 (Li et al. 2025, arXiv 2503.01840): a head that reads the target's states after several layers.

`fc` combines them into one state. The first layer's attention reads the next token's embedding and the state,
each normalized and then concatenated. The output of the last layer is the next state. `norm` and `lm_head`
compute its logits, over the head's own vocabulary. Names and options are Speculators'
(`speculators/models/eagle3/core.py`), as vLLM runs them (`vllm/model_executor/models/llama_eagle3.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.executors.torch.cache import CacheView
from trtspec.serving.executors.torch.dependents.head import AttachedHead, head_forms
from trtspec.serving.executors.torch.dependents.home import Home, SlotStates
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.linear import Linear
from trtspec.serving.executors.torch.weights import Form

EMBEDDING_NORM, HIDDEN_NORM = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"


class Eagle3Head(AttachedHead):
    """An EAGLE-3 head."""

    def __init__(self, config: TorchEngineConfig, tensors: Mapping[str, Tensor], home: Home) -> None:
        assert config.draft is not None
        self._options, self._fc = config.draft, Linear(tensors["fc.weight"])
        self._norms = {name: tensor for name, tensor in tensors.items() if "norm" in name}
        self._epsilon = config.norm_epsilon
        self._is_last_normed = "norm_output" in config.draft["extra_norms"]
        depths = config.draft["aux_layers"]
        super().__init__(config, tensors, home, SlotStates(home, config.hidden_size, depths, self._combine))
        own = tensors.get("lm_head.weight")
        self._lm_head = home.model.logits if own is None else Linear(own)
        self._targets: Tensor | None = None
        if "d2t" in tensors:
            self._targets = tensors["d2t"] + torch.arange(len(tensors["d2t"]), device=self._device)

    def _combine(self, states: Sequence[Tensor]) -> Tensor:
        """Returns one state `[rows, hidden_size]` from the target's states."""
        extra = self._options["extra_norms"]
        if "fc_norm" in extra:
            states = [self._norm(state, f"fc_norm.{number}.weight") for number, state in enumerate(states)]
        stacked = torch.cat(list(states), -1)
        return self._fc(self._norm(stacked, "input_norm.weight") if "norm_before_fc" in extra else stacked)

    def _compute(
        self, embedded: Tensor, states: Tensor, rotation: Tensor, views: Sequence[CacheView]
    ) -> Tensor:
        normed = self._norm(states, HIDDEN_NORM)
        x = normed if self._options["norm_before_residual"] else states
        read: Tensor | None = torch.cat([self._norm(embedded, EMBEDDING_NORM), normed], -1)
        for layer in self._layers:
            x, read = layer.forward(x, rotation, views, read), None
        return x

    def _results(self, x: Tensor) -> tuple[Tensor, Tensor]:
        normed = self._norm(x, "norm.weight")
        logits = self._lm_head(normed)
        if self._targets is not None:
            everything = logits.new_full((len(logits), self._embedding.shape[0]), float("-inf"))
            logits = everything.index_copy_(1, self._targets, logits)
        return logits, normed if self._is_last_normed else x

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self._norms[name], self._epsilon)


def forms(config: TorchEngineConfig) -> dict[str, Form]:
    """Returns the tensors that the head must have."""
    assert config.draft is not None
    options, dtype, hidden = config.draft, config.dtype, config.hidden_size
    count, theirs, own = len(options["aux_layers"]), options["target_hidden_size"], options["vocab_size"]
    result = {
        "fc.weight": Form(dtype, (hidden, count * theirs)),
        "norm.weight": Form(dtype, (hidden,)),
        EMBEDDING_NORM: Form(dtype, (hidden,)),
        HIDDEN_NORM: Form(dtype, (hidden,)),
        **head_forms(config, 2 * hidden),
    }
    if options["own_lm_head"]:
        result["lm_head.weight"] = Form(dtype, (own, hidden))
    if own < config.vocab_size:
        result["d2t"] = Form(torch.int64, (own,))
    if "norm_before_fc" in options["extra_norms"]:
        result["input_norm.weight"] = Form(dtype, (count * theirs,))
    if "fc_norm" in options["extra_norms"]:
        result |= {f"fc_norm.{number}.weight": Form(dtype, (theirs,)) for number in range(count)}
    return result


load = Eagle3Head
