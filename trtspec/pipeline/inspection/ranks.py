"""Compares the rank files of a checkpoint with what its config demands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.base.findings import Finding, Severity, note
from trtspec.checkpoint.cast import DTYPES
from trtspec.checkpoint.mapping import misfit
from trtspec.checkpoint.placement import EMBEDDING, Placed, place
from trtspec.checkpoint.prequantized import FP8
from trtspec.models.families import FAMILIES
from trtspec.models.tensors import Tensor, read_header
from trtspec.pipeline.inspection.pretrained import mapping_of, section, sizes_of
from trtspec.pipeline.inspection.report import finding

_AGAIN = "convert the model again"
_FEW = 8
_RANK = re.compile("0|[1-9][0-9]*")
_HEAD = "lm_head.weight"
_CACHE = "attention.kv_cache_scaling_factor"
# Tensors without effect: ModelOpt's separate scales of keys and of values, and what TensorRT-LLM's own
# conversion writes although an engine build computes it again.
_HARMLESS = re.compile(
    r"(.*\.)?([kv]_cache_scaling_factor|kv_cache_rcp_scaling_factor|rotary_inv_freq|embed_positions\w*)"
)


def read_ranks(
    folder: Path, config: Mapping[str, Any], findings: list[Finding]
) -> dict[int, dict[str, Tensor]]:
    """The tensors of every rank whose file is complete; errors of other files are added to `findings`."""
    world_size = mapping_of(config).world_size
    files = rank_files(folder, ".safetensors", world_size)
    findings += missing_ranks(files, ".safetensors", world_size, "checkpoint", _AGAIN)
    ranks = {}
    for rank, file in files.items():
        try:
            ranks[rank] = read_header(file)
        except ModelError as error:
            findings.append(finding(error, folder, Severity.ERROR))
    for file in sorted(set(folder.glob("rank*.safetensors")) - set(files.values())):
        findings.append(note(file.name, f"is not read; the checkpoint has {world_size} ranks"))
    return ranks


def rank_files(folder: Path, suffix: str, world_size: int) -> dict[int, Path]:
    """The files `rank<number><suffix>` that are there, by rank; `world_size` may be any number."""
    found = {}
    for file in folder.glob(f"rank*{suffix}"):
        rank = file.name.removeprefix("rank").removesuffix(suffix)
        if _RANK.fullmatch(rank) and int(rank) < world_size and file.is_file():
            found[int(rank)] = file
    return dict(sorted(found.items()))


def missing_ranks(
    files: Mapping[int, Path], suffix: str, world_size: int, what: str, repair: str
) -> Iterator[Finding]:
    """Finds the ranks of `what` without a file. If there are many, it names the first and their number."""
    number = world_size - len(files)
    missing = (f"rank{rank}{suffix}" for rank in range(world_size) if rank not in files)
    if number > _FEW:
        problem = f"is missing (and {number - 1} more); the {what} has {world_size} ranks"
        yield Finding(next(missing), problem, repair)
        return
    for name in missing:
        yield Finding(name, f"is missing; the {what} has {world_size} ranks", repair)


def compare(config: Mapping[str, Any], ranks: Mapping[int, Mapping[str, Tensor]]) -> Iterator[Finding]:
    """Finds tensors that are missing, have another shape or dtype, or are not the model's.

    Each rank has at most one finding of each kind.
    """
    sizes, mapping = sizes_of(config), mapping_of(config)
    if sizes is None or misfit(sizes, mapping, fp8=False):
        return
    weights = tuple(FAMILIES[sizes.architecture].weights(sizes))
    for rank, tensors in ranks.items():
        placed = list(place(weights, sizes.num_hidden_layers, sizes.head_size, mapping, rank))
        demanded = {name: entry for item in placed for name, entry in _demanded(config, item).items()}
        if EMBEDDING in tensors:  # TensorRT-LLM takes it for the head if there is none
            demanded = {name: entry for name, entry in demanded.items() if name != _HEAD or name in tensors}
        yield from _compare_rank(f"rank{rank}.safetensors", demanded, tensors)


def _compare_rank(
    file: str, demanded: Mapping[str, tuple[str, tuple[int, ...]]], tensors: Mapping[str, Tensor]
) -> Iterator[Finding]:
    missing = [name for name in demanded if name not in tensors]
    if missing:
        yield Finding(file, f"{missing[0]}: is missing{_more(missing)}", _AGAIN)
    there = {name: tensors[name] for name in demanded if name in tensors}
    misshapen = [name for name, tensor in there.items() if tensor.shape != demanded[name][1]]
    if misshapen:
        name = misshapen[0]
        shapes = f"has shape {list(there[name].shape)}, but its config demands {list(demanded[name][1])}"
        yield Finding(file, f"{name}: {shapes}{_more(misshapen)}", _AGAIN)
    others = [name for name, tensor in there.items() if tensor.dtype != demanded[name][0]]
    if others:
        name = others[0]
        dtypes = f"has dtype {there[name].dtype}, but its config demands {demanded[name][0]}"
        yield Finding(file, f"{name}: {dtypes}{_more(others)}", _AGAIN)
    extra = [name for name in tensors if name not in demanded and not _HARMLESS.fullmatch(name)]
    if extra:
        problem = f"{extra[0]}: does not belong to this model{_more(extra)}; TensorRT-LLM ignores it"
        yield note(file, problem)


def _demanded(config: Mapping[str, Any], placed: Placed) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and shape of a weight and of the scales beside it, by tensor name."""
    quantization = section(config, "quantization")
    dtype, shape = placed.weight.dtype or DTYPES.get(str(config.get("dtype")), ""), placed.shape
    if placed.name == EMBEDDING and not config.get("use_parallel_embedding"):
        shape = placed.weight.parts[0].shape
    if not (placed.weight.linear and quantization.get("quant_algo") == "FP8"):
        return {placed.name: (dtype, shape)}
    stem, experts = placed.name.removesuffix("weight"), placed.weight.experts
    demanded = {
        placed.name: (FP8, shape),
        f"{stem}weights_scaling_factor": ("F32", (experts, 1) if experts else (1,)),
        f"{stem}activation_scaling_factor": ("F32", (1,)),
    }
    if quantization.get("kv_cache_quant_algo") == "FP8" and placed.weight.name == "attention.qkv.weight":
        demanded[placed.name.removesuffix(placed.weight.name) + _CACHE] = ("F32", (1,))
    return demanded


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
