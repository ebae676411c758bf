"""Plans a checkpoint, its config, tensors and scales, before a byte of it is written; checks what it is made
of.

A model folder has every tensor that its configuration demands, and no other.

An FP8 model has scales, so that it is neither calibrated nor quantized again. Each linear layer `X` has
two numbers, with which stored ones are multiplied: `X.weight_scale` and `X.input_scale`. Each attention
layer `A` has two for the KV cache: `A.k_proj.k_scale` and `A.v_proj.v_scale` (ModelOpt, also if one
module makes queries, keys and values), `A.k_scale` and `A.v_scale` (compressed-tensors since 0.6,
AutoFP8), `A.k_proj.output_scale` and `A.v_proj.output_scale` (older compressed-tensors), or one,
`A.kv_scale` (older AutoFP8). Scales of compressed-tensors have the dtype of the model; zero points, if
they are stored, are zero.

The scales that TensorRT-LLM reads are computed from what a calibration found. A stored number times its
scale is the real one, so scale = amax / 448, in float32. One product has one scale: query, key and value
share theirs, and so do `mlp.fc` and `mlp.gate`, which a fused MLP reads as one (TensorRT-LLM's
`quantization/layers.py`, ModelOpt's `export/postprocess.py`). The scale of a KV cache that was calibrated
here is at least 1, which leaves keys and values up to 448 as they are (`get_kv_cache_scaling_factor` of
ModelOpt); a published one is kept as it is, as TensorRT-LLM's own conversion keeps it
(`models/llama/convert.py`). Separate scales of keys and of values are written because ModelOpt writes
them, and TensorRT-LLM does not read them. Its own conversion writes `kv_cache_rcp_scaling_factor`
instead, which an engine build computes again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from trtspec.base.errors import ModelError, TensorError
from trtspec.checkpoint.calibration import Amax, CalibratedRanges
from trtspec.checkpoint.convert_options import ConvertOptions, Placed, TensorShare, misfit, placed_on_ranks
from trtspec.checkpoint.engine_draft import EngineDraft
from trtspec.checkpoint.tensors import (
    DTYPES,
    FP8,
    FP8_MAX,
    NUMPY,
    Caster,
    Reader,
    TensorEntry,
    caster,
    chunks,
    quantizer,
)
from trtspec.models.families import family_of
from trtspec.models.families.family import FamilyTensor, ModelFamily, TensorPart, shapes
from trtspec.models.source import DOWNLOAD_AGAIN, EMBEDDING, HEAD, QUANTIZE_IT, SAME_REVISION, Source, Tensor

_KEYS = re.compile(r"(model\.layers\.\d+\.self_attn)\.(?:k|qkv)_proj\.weight")
_ZERO_POINTS = tuple(f"{of}_zero_point" for of in ("weight", "input", "output", "k", "v"))


@dataclass(frozen=True, slots=True)
class Prequantized:
    """The scales of an FP8 model, as a conversion needs them."""

    calibration: CalibratedRanges
    """Has amax = scale * 448, exact in float64."""
    stored_scales: Mapping[str, float]
    """The number with which the FP8 numbers of a module's weight are to be multiplied, by module."""
    has_kv_scales: bool
    """False if the model has no scales of keys and values, which are then 1.0."""
    scale_tensors: frozenset[str]
    """The names of the tensors from which all of this was read; they are no weights."""


def read_prequantized(source: Source, weights: Iterable[FamilyTensor]) -> Prequantized | None:
    """The scales of an FP8 model; None for a model that is not quantized.

    Raises TensorError for a scale that is missing or unusable, or a linear layer that is not FP8.
    """
    if source.scheme is None:
        return None
    reader = _ScaleReader(source.tensors)
    products = {part.name for weight in weights if weight.linear for part in weight.parts}
    linears, stored = {}, {}
    for name, tensor in source.tensors.items():
        if tensor.dtype == FP8 and name.endswith(".weight"):
            module = name.removesuffix(".weight")
            stored[module] = reader.scale_of(tensor, f"{module}.weight_scale")
            inputs = reader.scale_of(tensor, f"{module}.input_scale")
            linears[module] = Amax(weight=stored[module] * FP8_MAX, input=inputs * FP8_MAX)
            reader.check_zero_points(module)
        elif name in products:
            problem = f"{name}: is {tensor.dtype}; the config says FP8, so all linear layers must be FP8"
            raise TensorError(tensor.file, problem, QUANTIZE_IT)
    scales = _cache_scales(source, reader)
    provenance = {"method": source.scheme.method, "scales": "stored in the model"}
    return Prequantized(
        calibration=CalibratedRanges(
            linears, {name: (scale or 1.0) * FP8_MAX for name, scale in scales.items()}, provenance
        ),
        stored_scales=stored,
        has_kv_scales=all(scales.values()),
        scale_tensors=frozenset(reader.read),
    )


def _cache_scales(source: Source, reader: _ScaleReader) -> dict[str, float | None]:
    """The scales of keys and values, by the names of `k_proj` and `v_proj`; None for one not stored."""
    scales = {}
    for match in filter(None, map(_KEYS.fullmatch, source.tensors)):
        attention = match[1]
        reader.check_zero_points(attention)
        for letter in "kv":
            module = f"{attention}.{letter}_proj"
            names = f"{module}.{letter}_scale", f"{attention}.{letter}_scale", f"{module}.output_scale"
            scales[module] = reader.first(*names, f"{attention}.kv_scale")
    return scales


class _ScaleReader:
    """Reads scales, and remembers which tensors they were."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self.read: set[str] = set()

    def scale_of(self, weight: Tensor, name: str) -> float:
        scale = self.first(name)
        if scale is None:
            problem = f"{name}: is missing, but {weight.name} is FP8"
            raise TensorError(weight.file, problem, QUANTIZE_IT)
        return scale

    def first(self, *names: str) -> float | None:
        """The scale under the first of these names that exists; None if none does."""
        name = next((name for name in names if name in self._tensors), None)
        if name is None:
            return None
        self.read.add(name)
        tensor = self._tensors[name]
        if tensor.elements != 1:
            problem = f"{name}: has {tensor.elements} scales; TensorRT-LLM's FP8 has one per tensor"
            raise TensorError(tensor.file, problem, QUANTIZE_IT)
        number = _number(tensor)
        if not (math.isfinite(number) and number > 0):
            raise TensorError(tensor.file, f"{name}: is {number}, which is not a valid scale", DOWNLOAD_AGAIN)
        return number

    def check_zero_points(self, module: str) -> None:
        for name in (f"{module}.{point}" for point in _ZERO_POINTS if f"{module}.{point}" in self._tensors):
            tensor = self._tensors[name]
            if any(tensor.read()):
                problem = f"{name}: is not zero; TensorRT-LLM's FP8 is symmetric"
                raise TensorError(tensor.file, problem, QUANTIZE_IT)
            self.read.add(name)


def _number(tensor: Tensor) -> float:
    if tensor.dtype not in DTYPES.values():
        raise TensorError(tensor.file, f"{tensor.name}: is a scale of dtype {tensor.dtype}", QUANTIZE_IT)
    return float(caster(tensor.dtype, "F32")(np.frombuffer(tensor.read(), NUMPY[tensor.dtype]))[0])


_IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")  # computed again
_CHUNK = 1 << 20  # bytes


def check_tensors(
    source: Source, weights: Iterable[FamilyTensor], prequantized: Prequantized | None
) -> dict[str, Tensor]:
    """The Hugging Face tensors that the weights are made of, by name.

    Raises TensorError for one that is missing, has another dtype or shape, or would be lost.
    """
    scales = prequantized.scale_tensors if prequantized else frozenset[str]()
    weights = tuple(weights)
    demanded = shapes(weights)
    linear = {part.name for weight in weights if weight.linear for part in weight.parts}
    missing = [name for name in demanded if name not in source.tensors]
    if missing:
        problem = f"{missing[0]}: this tensor is missing{_more(missing)}"
        raise TensorError(source.folder, problem, DOWNLOAD_AGAIN)
    for name, shape in demanded.items():
        _check_tensor(source.tensors[name], shape, quantized=name in linear and prequantized is not None)
    known = {*demanded, *scales, *([HEAD] if source.tie_word_embeddings else [])}
    extra = [name for name in source.tensors if name not in known and not _IGNORED.fullmatch(name)]
    if extra:
        has_none = f"{source.architecture} has no such tensor{_more(extra)}"
        problem = f"{extra[0]}: {has_none}; converting would lose it"
        file = source.tensors[extra[0]].file
        raise TensorError(file, problem, "check architectures and sizes in config.json")
    return {name: source.tensors[name] for name in demanded}


def check_tied_head(source: Source) -> None:
    """Raises TensorError for a head that is tied to the embedding, but stored with other numbers.

    For such a model transformers 4 computes with the embedding, and transformers 5 with the stored head.
    """
    tensors = [source.tensors.get(name) for name in (EMBEDDING, HEAD)]
    if not source.tie_word_embeddings or None in tensors:
        return
    embedding, head = (tensor for tensor in tensors if tensor)
    with Reader({embedding.file, head.file}) as reader:
        pieces = chunks(range(embedding.shape[0]), embedding, _CHUNK)
        same = (embedding.dtype, embedding.shape) == (head.dtype, head.shape) and all(
            np.array_equal(reader.rows(embedding, rows).view("u1"), reader.rows(head, rows).view("u1"))
            for rows in pieces
        )
    if not same:
        problem = f"{HEAD}: is not the embedding, although tie_word_embeddings is true"
        repair = (
            "if this lm_head is right, write tie_word_embeddings: false in config.json; else remove the "
            "tensor"
        )
        raise TensorError(head.file, problem, repair)


def check_finite(tensors: Iterable[Tensor]) -> None:
    """Reads the tensors; raises TensorError for one with a number that is not finite."""
    tensors = tuple(tensors)
    with Reader({tensor.file for tensor in tensors}) as reader:
        for tensor in tensors:
            for rows in chunks(range(tensor.shape[0]), tensor, _CHUNK):
                reader.finite_rows(tensor, rows)


def _check_tensor(tensor: Tensor, shape: tuple[int, ...], *, quantized: bool) -> None:
    allowed = [FP8] if quantized else list(DTYPES.values())
    if tensor.dtype not in allowed:
        problem = f"{tensor.name}: has dtype {tensor.dtype}, expected one of {', '.join(allowed)}"
        raise TensorError(tensor.file, problem, QUANTIZE_IT if tensor.dtype == FP8 else None)
    if tensor.shape != shape:
        problem = f"{tensor.name}: has shape {list(tensor.shape)}, but config.json demands {list(shape)}"
        raise TensorError(tensor.file, problem, SAME_REVISION)


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


T = TypeVar("T")
QKV = "attention.qkv.weight"
_SHARED = {"mlp.gate.weight": "mlp.fc.weight"}


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of one linear weight."""

    weights: Mapping[str, float]
    """The scale of each part of the weight, by its module."""
    tensors: Mapping[str, tuple[float, ...]]
    """All scales that are written beside the weight, by their name within the layer.

    Each is one number, or one for each expert.
    """


def scales_of(
    weights: Iterable[FamilyTensor],
    calibration: CalibratedRanges,
    *,
    kv_cache: bool,
    least_cache_scale: float = 1.0,
) -> dict[FamilyTensor, Scales]:
    """The scales of every linear weight; those of a KV cache are at least `least_cache_scale`.

    Raises ModelError for a layer that was not calibrated.
    """
    linears = [weight for weight in weights if weight.linear]
    groups: dict[tuple[int | None, str], list[TensorPart]] = {}
    for weight in linears:
        groups.setdefault(_group(weight), []).extend(weight.parts)
    result = {}
    for weight in linears:
        parts = groups[_group(weight)]
        matrices = (parts,) if weight.experts is None else weight.matrices
        scales = [
            to_scale(max(_find(calibration.linears, part.module).weight for part in matrix))
            for matrix in matrices
        ]
        activation = to_scale(max(_find(calibration.linears, part.module).input for part in parts))
        stem = weight.name.removesuffix(".weight")
        tensors = {
            f"{stem}.weights_scaling_factor": tuple(scales),
            f"{stem}.activation_scaling_factor": (activation,),
        }
        if kv_cache and weight.name == QKV:
            tensors |= _key_value_scales(weight, calibration, least_cache_scale)
        modules = {
            part.module: scale for matrix, scale in zip(matrices, scales, strict=True) for part in matrix
        }
        result[weight] = Scales(modules, tensors)
    return result


def to_scale(amax: float) -> float:
    """The float32 nearest to amax / 448."""
    return float(np.float32(amax / FP8_MAX))


def _group(weight: FamilyTensor) -> tuple[int | None, str]:
    return weight.layer, _SHARED.get(weight.name, weight.name)


def _key_value_scales(
    weight: FamilyTensor, calibration: CalibratedRanges, least: float
) -> dict[str, tuple[float, ...]]:
    """The scales of the KV cache: the shared one, which TensorRT-LLM reads, and ModelOpt's separate ones."""
    k, v = (max(to_scale(_find(calibration.kv, name)), least) for name in weight.caches)
    names = ("kv_cache", "k_cache", "v_cache")
    return {
        f"attention.{name}_scaling_factor": (scale,)
        for name, scale in zip(names, (max(k, v), k, v), strict=True)
    }


def _find(found: Mapping[str, T], module: str) -> T:
    if module not in found:
        raise ModelError("the calibration", f"has no values for {module}", "calibrate this model again")
    return found[module]


def _config(source: Source, family: ModelFamily, options: ConvertOptions) -> dict[str, Any]:
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
class PlannedShare:
    """A rank's share of a part, and the tensor in its file that has it."""

    rank: int
    name: str
    share: TensorShare


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A part of a weight, the tensor that has its numbers, and how they become those of the checkpoint."""

    rows: range
    """The rows of the tensor."""
    tensor: Tensor
    cast: Callable[[], Caster]
    """Makes the function that converts them. It has a table, so it is made where it is needed."""
    targets: tuple[PlannedShare, ...]
    """The shares of it that ranks have."""


@dataclass(frozen=True, slots=True)
class PlannedWeight:
    """All that a checkpoint has of one weight."""

    weight: FamilyTensor
    dtype: str
    """The dtype in the checkpoint, by its safetensors name."""
    parts: tuple[PlannedPart, ...]
    """The weight's own parts, in its order."""
    scales: Mapping[str, tuple[float, ...]]
    """The scales that stand beside it, by their name within the layer; empty if it is not FP8."""
    placed: Mapping[int, Placed]
    """The tensor on each rank that has it."""


def shape_of(scales: tuple[float, ...]) -> tuple[int, ...]:
    """The shape in which scales are written, which are F32."""
    return (1,) if len(scales) == 1 else (len(scales), 1)


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """The file of a rank."""

    entries: tuple[TensorEntry, ...]
    """Its tensors, in order: each weight, followed by its scales."""
    scales: Mapping[str, tuple[float, ...]]
    """The numbers of those that are scales, by name."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The plan of a checkpoint that is to be written."""

    config: Mapping[str, Any]
    """The content of `config.json`."""
    weights: tuple[PlannedWeight, ...]
    files: tuple[PlannedFile, ...]
    """The file of each rank."""


def draw(source: Source, options: ConvertOptions, draft: EngineDraft | None = None) -> Blueprint:
    """Plans the checkpoint of a model, with a draft in it if it has one.

    Presence, dtype and shape of the model's tensors are checked. Raises ModelError or TensorError.
    """
    family, mapping = family_of(source), options.mapping
    own = tuple(family.weights(source))
    if found := misfit(source, mapping, fp8=options.fp8):
        raise ModelError(source.folder / "config.json", found.problem, found.repair)
    weights = (*own, *draft.weights()) if draft else own
    placed = [placed_on_ranks(weight, source, mapping) for weight in weights]
    prequantized = read_prequantized(source, own)
    tensors = check_tensors(source, own, prequantized)
    check_tied_head(source)
    scales = _scales(source, own, options, prequantized)
    stored = prequantized.stored_scales if prequantized else {}
    tensors |= draft.tensors if draft else {}
    planned = tuple(
        _planned(weight, tensors, scales.get(weight), stored, DTYPES[options.dtype], on_ranks)
        for weight, on_ranks in zip(weights, placed, strict=True)
    )
    files = tuple(_file(planned, rank) for rank in range(mapping.world_size))
    config = _config(source, family, options)
    return Blueprint(draft.config(source, options, config) if draft else config, planned, files)


def _planned(
    weight: FamilyTensor,
    tensors: Mapping[str, Tensor],
    scales: Scales | None,
    stored_scales: Mapping[str, float],
    dtype: str,
    placed: Mapping[int, Placed],
) -> PlannedWeight:
    target = FP8 if scales else weight.dtype or dtype
    parts = []
    for number, part in enumerate(weight.parts):
        tensor = tensors[part.name]
        cast = partial(caster, tensor.dtype, target, weight.shift)
        if scales:
            stored = stored_scales.get(part.module, 1.0)
            cast = partial(quantizer, tensor.dtype, scales.weights[part.module], stored)
        shares = (PlannedShare(rank, held.name, held.shares[number]) for rank, held in placed.items())
        parts.append(PlannedPart(part.rows, tensor, cast, tuple(shares)))
    return PlannedWeight(weight, target, tuple(parts), scales.tensors if scales else {}, placed)


def _file(weights: Iterable[PlannedWeight], rank: int) -> PlannedFile:
    entries, scales = list[TensorEntry](), dict[str, tuple[float, ...]]()
    for weight in weights:
        if placed := weight.placed.get(rank):
            beside = {placed.stem + name: numbers for name, numbers in weight.scales.items()}
            entries.append(TensorEntry(placed.name, weight.dtype, placed.shape))
            entries += [TensorEntry(name, "F32", shape_of(numbers)) for name, numbers in beside.items()]
            scales |= beside
    return PlannedFile(tuple(entries), scales)


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
