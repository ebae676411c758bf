"""Converts layers whose MLP is a mixture of experts, for TensorRT-LLM's `layers/moe.py`.

Its matrices are those of one MLP with one more dimension, for the experts: `mlp.fc` holds up and gate
projection, in this order, and the second goes through the activation. `mlp.router` is float32 in every
checkpoint. Ranks share every expert (`moe_tp_size` is `tp_size`), as NVIDIA ModelOpt exports them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trtspec.models.families.decoder import linear, part
from trtspec.models.families.family import FamilyTensor, Split, TensorPart
from trtspec.models.sizes import Sizes
from trtspec.models.source import Source


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


def config(source: Source, *, renormalized: bool) -> dict[str, Any]:
    """The keys of TensorRT-LLM's `MoeConfig`; `renormalized`: the chosen experts' shares add up to 1."""
    experts = source.experts
    assert experts is not None
    chosen = {"num_experts": experts.count, "top_k": experts.chosen}
    return {"moe": {**chosen, "normalization_mode": int(renormalized)}}
