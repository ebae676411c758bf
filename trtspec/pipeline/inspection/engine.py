"""Inspects the directories of TensorRT-LLM and of the `torch` backend: a checkpoint, and an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtspec.backends.table import backend_named
from trtspec.base.errors import EngineError
from trtspec.base.findings import Finding, Severity, note
from trtspec.pipeline.engine.directory import MODES, maker_of, read_engine
from trtspec.pipeline.inspection import pretrained
from trtspec.pipeline.inspection.pretrained import mapping_of, section
from trtspec.pipeline.inspection.ranks import compare, missing_ranks, rank_files, read_ranks
from trtspec.pipeline.inspection.report import Report, finding, stored

_KEYS = (
    "max_batch_size",
    "max_input_len",
    "max_seq_len",
    "max_num_tokens",
    "max_draft_len",
    "speculative_decoding_mode",
    "gather_context_logits",
    "gather_generation_logits",
    "kv_cache_type",
)
_AGAIN = "build the engine again"


def inspect_engine(folder: Path, config: Mapping[str, Any]) -> Report:
    """The report of an engine directory; `config` is the content of its `config.json`."""
    model, build = section(config, "pretrained_config"), section(config, "build_config")
    backend = maker_of(str(config.get("version")))
    # A draft that lives in its target is no model by itself.
    draft = section(model, "draft").get("method")
    findings = [] if draft else list(pretrained.oddities(model))
    try:
        read_engine(folder)
    except EngineError as error:
        findings.append(finding(error, folder, Severity.ERROR))
    else:
        findings += _oddities(build)
    if backend_named(backend).is_embedded:
        ranks = read_ranks(folder, model, findings)
        findings += [] if draft else compare(model, ranks)
        files = [folder / f"rank{rank}.safetensors" for rank in ranks]
        tensors = [tensor for rank in ranks.values() for tensor in rank.values()]
    else:
        world_size = mapping_of(model).world_size
        of_ranks = rank_files(folder, ".engine", world_size)
        files, tensors = list(of_ranks.values()), []
        findings += missing_ranks(of_ranks, ".engine", world_size, "engine", _AGAIN)
        findings += [Finding(file.name, "is empty", _AGAIN) for file in files if not file.stat().st_size]
    return Report(
        folder=folder,
        kind="engine",
        facts={
            "version": config.get("version"),
            "backend": backend,
            **pretrained.facts(model),
            **({"draft": draft} if draft else {}),
            **{key: build.get(key) for key in _KEYS},
            "use_paged_context_fmha": section(build, "plugin_config").get("use_paged_context_fmha"),
        },
        stored=stored(tensors),
        files=(folder / "config.json", *files),
        findings=tuple(findings),
    )


def _oddities(build: Mapping[str, Any]) -> Iterator[Finding]:
    """Finds what would make the runtime fail; `read_engine` has checked that every key is there."""
    drafts, batch, tokens = build["max_draft_len"], build["max_batch_size"], build["max_num_tokens"]
    verifies = int(build["speculative_decoding_mode"]) in MODES.values()
    if verifies != bool(drafts):
        problem = f"is {build['speculative_decoding_mode']}, but max_draft_len is {drafts}"
        yield Finding("speculative_decoding_mode", problem, _AGAIN)
    if not build["plugin_config"]["use_paged_context_fmha"]:
        problem = "is off: no KV blocks are reused, so each round computes the whole text again"
        severity = Severity.ERROR if verifies else Severity.NOTE
        yield Finding("use_paged_context_fmha", problem, _AGAIN, severity=severity)
    if drafts and tokens < min(batch * (drafts + 1), build["max_seq_len"] * batch):
        problem = f"{tokens} is too small for {batch} verifications of {drafts} draft tokens and one more"
        yield Finding("max_num_tokens", problem, _AGAIN)
    if drafts and build.get("gather_context_logits"):
        yield Finding("gather_context_logits", "cannot be combined with drafts", _AGAIN)


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
