"""Plans a checkpoint: its config, tensors and scales, before a byte of it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.checkpoint.cast import DTYPES, FP8, Caster, caster, quantizer
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.inventory import check_tensors, check_tied_head
from trtspec.checkpoint.mapping import misfit
from trtspec.checkpoint.placement import Placed, place
from trtspec.checkpoint.prequantized import Prequantized, read_prequantized
from trtspec.checkpoint.scales import Scales, scales_of, shape_of
from trtspec.checkpoint.writer import TensorEntry
from trtspec.models.families import family_of
from trtspec.models.families.family import FamilyTensor, ModelFamily, TensorPart
from trtspec.models.source import Source, Tensor


def checkpoint_config(source: Source, family: ModelFamily, options: ConvertOptions) -> dict[str, Any]:
    mapping = options.mapping
    return {
        "architecture": source.architecture,
        "dtype": options.dtype,
        "logits_dtype": "float32",
        "vocab_size": source.vocab_size,
        "hidden_size": source.hidden_size,
        "intermediate_size": source.intermediate_size,
        "num_hidden_layers": source.num_hidden_layers,
        "num_attention_heads": source.num_attention_heads,
        "num_key_value_heads": source.num_key_value_heads,
        "head_size": source.head_size,
        "hidden_act": source.hidden_act,
        "norm_epsilon": source.norm_epsilon,
        "position_embedding_type": "rope_gpt_neox",
        # How many positions TensorRT-LLM makes a table of, which a factor does not lengthen there.
        "max_position_embeddings": source.max_position,
        "rotary_embedding_dim": source.head_size,
        # The ranks divide the embedding's rows, dimension 0, as `Split.VOCAB` does.
        "use_parallel_embedding": mapping.tp_size > 1,
        "embedding_sharding_dim": 0,
        "qk_layernorm": False,
        **family.config(source),
        **{key.name: key.value for key in family.keys},
        "mapping": {
            "world_size": mapping.world_size,
            "tp_size": mapping.tp_size,
            "pp_size": mapping.pp_size,
            # Every rank has a share of every expert; the defaults of releases differ.
            **({"moe_tp_size": mapping.tp_size, "moe_ep_size": 1} if source.experts else {}),
        },
        "quantization": _quantization(source, options),
    }


def _quantization(source: Source, options: ConvertOptions) -> dict[str, Any]:
    """The keywords of TensorRT-LLM's `QuantConfig`, which refuses any other.

    What is named there replaces what TensorRT-LLM leaves out by itself (`quantization/quantize.py`).
    """
    if not options.fp8:
        return {"quant_algo": None, "kv_cache_quant_algo": None}
    routers = ["*router", "*shared_expert_gate"] if source.experts else []
    return {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8" if options.fp8_kv_cache else None,
        "exclude_modules": ["lm_head", *routers],
    }


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The plan of a checkpoint that is to be written."""

    config: Mapping[str, Any]
    """The content of `config.json`."""
    weights: tuple[FamilyTensor, ...]
    ranks: tuple[tuple[Placed, ...], ...]
    """The tensors of each rank."""
    scales: Mapping[FamilyTensor, Scales]
    """Empty if nothing is FP8."""
    tensors: Mapping[str, Tensor]
    """The Hugging Face tensors of the weights, by name."""
    stored_scales: Mapping[str, float]
    """The scales of the weights that are FP8 already, by module. A stored number times its scale is the real
    number.
    """
    dtype: str
    """The safetensors name for all weights that are not FP8 and have no dtype of their own."""

    def entries(self, rank: int) -> list[TensorEntry]:
        """Returns the tensors in the file of a rank, in order: each weight, followed by its scales, which are
        F32.
        """
        entries = []
        for placed in self.ranks[rank]:
            entries.append(TensorEntry(placed.name, self.dtype_of(placed.weight), placed.shape))
            beside = self.scales_beside(placed).items()
            entries += [TensorEntry(name, "F32", shape_of(scales)) for name, scales in beside]
        return entries

    def dtype_of(self, weight: FamilyTensor) -> str:
        """The dtype of a weight in the checkpoint, by its safetensors name."""
        return FP8 if weight in self.scales else weight.dtype or self.dtype

    def scales_beside(self, placed: Placed) -> dict[str, tuple[float, ...]]:
        """The scales that are stored beside a weight, by tensor name; empty for one that is not FP8."""
        if placed.weight not in self.scales:
            return {}
        layer = placed.name.removesuffix(placed.weight.name)
        return {layer + name: scale for name, scale in self.scales[placed.weight].tensors.items()}

    def caster(self, weight: FamilyTensor, part: TensorPart) -> Caster:
        """The function that turns a part's stored numbers into those of the checkpoint."""
        tensor = self.tensors[part.name]
        if weight not in self.scales:
            return caster(tensor.dtype, self.dtype_of(weight), weight.shift)
        stored = self.stored_scales.get(part.module, 1.0)
        return quantizer(tensor.dtype, self.scales[weight].weights[part.module], stored)


def draw(source: Source, options: ConvertOptions) -> Blueprint:
    """Plans the checkpoint of a model, and checks presence, dtype and shape of its tensors.

    Raises ModelError or TensorError.
    """
    family, mapping = family_of(source), options.mapping
    if found := misfit(source, mapping, fp8=options.fp8):
        raise ModelError(source.folder / "config.json", found.problem, found.repair)
    prequantized = read_prequantized(source)
    weights = tuple(family.weights(source))
    tensors = check_tensors(source, weights, prequantized)
    check_tied_head(source)
    return Blueprint(
        config=checkpoint_config(source, family, options),
        weights=weights,
        ranks=tuple(tuple(place(weights, source, mapping, rank)) for rank in range(mapping.world_size)),
        scales=_scales(source, weights, options, prequantized),
        tensors=tensors,
        stored_scales=prequantized.stored_scales if prequantized else {},
        dtype=DTYPES[options.dtype],
    )


def _scales(
    source: Source,
    weights: tuple[FamilyTensor, ...],
    options: ConvertOptions,
    prequantized: Prequantized | None,
) -> dict[FamilyTensor, Scales]:
    if prequantized and not options.fp8:
        raise ModelError(source.folder, "is an FP8 model", "write quantization: {weights: fp8} in the recipe")
    if not options.fp8:
        return {}
    if options.calibration:
        return scales_of(weights, options.calibration, kv_cache=options.fp8_kv_cache)
    if prequantized:
        return scales_of(
            weights, prequantized.calibration, kv_cache=options.fp8_kv_cache, least_cache_scale=0.0
        )
    repair = "write quantization: {weights: fp8, calibration: …} in the recipe"
    raise ModelError(source.folder, "has no FP8 scales: it was not calibrated", repair)
