"""Inspects a TensorRT-LLM unified checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.base.errors import EngineError
from trtspec.base.findings import note
from trtspec.pipeline.engine.directory import read_engine
from trtspec.pipeline.inspection import pretrained
from trtspec.pipeline.inspection.ranks import compare, read_ranks
from trtspec.pipeline.inspection.report import Report, stored


def inspect_checkpoint(folder: Path, config: Mapping[str, Any]) -> Report:
    """The report of a checkpoint; `config` is the content of its `config.json`."""
    findings = list(pretrained.oddities(config))
    ranks = read_ranks(folder, config, findings)
    findings += compare(config, ranks)
    if config.get("dtype") == "float32" and not _is_of_torch(folder):
        problem = (
            "is float32, but TensorRT-LLM has no paged context FMHA for it; only the torch backend serves it"
        )
        findings.append(note("dtype", problem, "write dtype: bfloat16 in the recipe"))
    return Report(
        folder=folder,
        kind="checkpoint",
        facts=pretrained.facts(config),
        stored=stored(tensor for tensors in ranks.values() for tensor in tensors.values()),
        files=(folder / "config.json", *(folder / f"rank{rank}.safetensors" for rank in ranks)),
        findings=tuple(findings),
    )


def _is_of_torch(folder: Path) -> bool:
    """Says whether a build has an engine of the torch backend beside the checkpoint."""
    try:
        return read_engine(folder.parent / "engine").runner.is_embedded
    except EngineError:
        return False
