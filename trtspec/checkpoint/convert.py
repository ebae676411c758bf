"""Hugging Face in, a TensorRT-LLM unified checkpoint out: `config.json` and `rank0.safetensors`, one rank."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trtspec.checkpoint.cast import DTYPES, cast
from trtspec.checkpoint.families import family_of
from trtspec.checkpoint.families.family import Family, Part, Weight
from trtspec.checkpoint.source import Source
from trtspec.checkpoint.tensors import DOWNLOAD_AGAIN, Tensor
from trtspec.checkpoint.writer import Chunk, Entry, write_safetensors
from trtspec.errors import TensorError, UnavailableError

CHUNK = 2 << 20  # bytes; the casts of a piece this small stay in the processor's cache
FORMAT = 1  # of what is written: raised when the same source and dtype give other bytes


def convert(
    source: Source, dtype: str, folder: Path, advance: Callable[[int], None] = lambda _: None
) -> None:
    """Writes the checkpoint into `folder`, which must not exist; the same source gives the same bytes.

    `dtype` is `float32`, `float16` or `bfloat16`. Nothing is written before every tensor's presence, dtype
    and shape has been checked. `advance` hears of every bytes written. Raises ModelError, TensorError or
    UnavailableError.
    """
    family = family_of(source)
    weights = check_tensors(source, family)
    entries = [_entry(weight, dtype) for weight in weights]
    folder.mkdir(parents=True)
    _check_space(folder, sum(entry.size for entry in entries))
    config = json.dumps(checkpoint_config(source, family, dtype), indent=4) + "\n"
    (folder / "config.json").write_text(config, encoding="utf-8")
    for written in write_safetensors(folder / "rank0.safetensors", entries, _data(source, weights, dtype)):
        advance(written)


def checkpoint_size(source: Source, dtype: str) -> int:
    """Bytes of `rank0.safetensors`, without its header."""
    weights = family_of(source).weights(source)
    return sum(_entry(weight, dtype).size for weight in weights)


def check_tensors(source: Source, family: Family) -> list[Weight]:
    """The checkpoint's tensors, if the source has all of their parts and nothing that would be lost."""
    weights = list(family.weights(source))
    parts = {part.name: part for weight in weights for part in weight.parts}
    missing = [name for name in parts if name not in source.tensors]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise TensorError(source.folder, f"{missing[0]}: this tensor is missing{more}", DOWNLOAD_AGAIN)
    for part in parts.values():
        _check_part(part, source.tensors[part.name])
    known = parts.keys() | ({"lm_head.weight"} if source.tie_word_embeddings else set())
    extra = [name for name in source.tensors if name not in known and not family.ignored.fullmatch(name)]
    if extra:
        more = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
        problem = f"{extra[0]}: {source.architecture} has no such tensor{more}; converting would lose it"
        raise TensorError(
            source.tensors[extra[0]].file, problem, "check architectures and sizes in config.json"
        )
    return weights


def checkpoint_config(source: Source, family: Family, dtype: str) -> dict[str, Any]:
    """`config.json` of the checkpoint: TensorRT-LLM's `PretrainedConfig`, every default said aloud."""
    return {
        "architecture": source.architecture,
        "dtype": dtype,
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
        "max_position_embeddings": source.max_position_embeddings,
        "rotary_embedding_dim": source.head_size,
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "qk_layernorm": False,
        **family.config(source),
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }


def _entry(weight: Weight, dtype: str) -> Entry:
    rows = sum(part.shape[0] for part in weight.parts)
    return Entry(weight.name_from(0), DTYPES[dtype], (rows, *weight.parts[0].shape[1:]))


def _check_part(part: Part, tensor: Tensor) -> None:
    if tensor.dtype not in DTYPES.values():
        expected = ", ".join(DTYPES.values())
        raise TensorError(tensor.file, f"{part.name}: has dtype {tensor.dtype}, expected one of {expected}")
    if tensor.shape != part.shape:
        problem = f"{part.name}: has shape {list(tensor.shape)}, config.json demands {list(part.shape)}"
        raise TensorError(tensor.file, problem, "take config.json and weights from the same revision")


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        gigabytes = f"{needed / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB free"
        raise UnavailableError(
            folder, f"the disk is full: {gigabytes}", "free some space, or choose another --output"
        )


def _data(source: Source, weights: list[Weight], dtype: str) -> Iterator[Chunk]:
    """The bytes of every weight; of parts stacked along the first dimension, they follow each other."""
    for weight in weights:
        for part in weight.parts:
            yield from _part_data(source.tensors[part.name], dtype)


def _part_data(tensor: Tensor, dtype: str) -> Iterator[Chunk]:
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.start)
        left = tensor.end - tensor.start
        while left:
            data = stream.read(min(CHUNK, left))
            if not data:
                raise TensorError(tensor.file, f"{tensor.name}: the file was cut off while it was read")
            left -= len(data)
            try:
                yield cast(data, tensor.dtype, DTYPES[dtype])
            except OverflowError as error:
                problem = f"{tensor.name}: holds {error.args[0]:g}, too large for {dtype}"
                raise TensorError(tensor.file, problem, "choose dtype: bfloat16 in the recipe") from error
