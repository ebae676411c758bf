"""Checks that a model folder has every tensor that its configuration demands, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from trtspec.base.errors import TensorError
from trtspec.checkpoint.cast import DTYPES, FP8
from trtspec.checkpoint.prequantized import Prequantized
from trtspec.checkpoint.reader import Reader, chunks
from trtspec.models.families.family import FamilyTensor, shapes
from trtspec.models.source import DOWNLOAD_AGAIN, EMBEDDING, HEAD, QUANTIZE_IT, SAME_REVISION, Source, Tensor

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
