"""Inspects the folder of a head: whose format it is, what it reads of its target, and what is odd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.base.findings import Finding, Severity, note
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.reading import read_head
from trtspec.models.tensors import PICKLES
from trtspec.pipeline.inspection.report import Report, finding, stored

_LAYER = (
    "model_type",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rope_theta",
    "rope_scaling",
)


def inspect_head(folder: Path) -> Report:
    """The report of a head's folder; the report has an error if the head is incomplete, or another kind of
    draft."""
    config = folder / "config.json"
    try:
        head = read_head(folder)
    except ModelError as error:
        facts: dict[str, Any] = {"method": None}
        return Report(folder, "head", facts, {}, (config,), (finding(error, folder, Severity.ERROR),))
    tensors = head.tensors.values()
    files = {config, *(tensor.file for tensor in tensors)}
    return Report(folder, "head", _facts(head), stored(tensors), tuple(sorted(files)), tuple(_oddities(head)))


def _facts(head: HeadDescription) -> dict[str, Any]:
    layer = {f"layer_{name}": value for name, value in (head.layer or {}).items() if name in _LAYER}
    return {
        "method": head.method,
        "format": head.form,
        "verifier": head.verifier,
        "parameters": head.parameters,
        "hidden_size": head.hidden_size,
        "vocab_size": head.vocab_size,
        "draft_vocab_size": head.draft_vocab_size,
        "aux_layers": None,
        "extra_norms": None,
        **head.facts(),
        **layer,
    }


def _oddities(head: HeadDescription) -> Iterator[Finding]:
    names = set(head.tensors)
    yield from head.oddities()
    if head.layer is not None and "embed_tokens.weight" not in names:
        yield note("embed_tokens.weight", "is missing; the target's is used")
    read = {tensor.file for tensor in head.tensors.values()}
    for path in sorted(head.folder.iterdir()):
        if path.suffix in PICKLES and path not in read:
            yield note(path.name, "is pickle, which can run code when read; trtspec never opens it")
