"""Inspects the directories of TensorRT-LLM and of the torch backend: a checkpoint, and an engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtspec.backends.table import backend_named
from trtspec.base.errors import EngineError, ModelError
from trtspec.base.findings import Finding, Severity, note
from trtspec.checkpoint.cast import DTYPES, FP8
from trtspec.checkpoint.mapping import misfit
from trtspec.checkpoint.placement import EMBEDDING, Placed, place
from trtspec.models.families import FAMILIES
from trtspec.models.source import Tensor, read_header
from trtspec.pipeline.engine.directory import MODES, maker_of, read_engine
from trtspec.pipeline.inspection import pretrained
from trtspec.pipeline.inspection.pretrained import mapping_of, section, sizes_of
from trtspec.pipeline.inspection.report import Report, finding, stored

_CONVERT = "convert the model again"
_FEW = 8
_RANK = re.compile("0|[1-9][0-9]*")
_HEAD = "lm_head.weight"
_CACHE = "attention.kv_cache_scaling_factor"
# Tensors without effect: ModelOpt's separate scales of keys and of values, and what TensorRT-LLM's own
# conversion writes although an engine build computes it again.
_HARMLESS = re.compile(
    r"(.*\.)?([kv]_cache_scaling_factor|kv_cache_rcp_scaling_factor|rotary_inv_freq|embed_positions\w*)"
)
_KEYS = (
    *("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_draft_len"),
    *("speculative_decoding_mode", "gather_context_logits", "gather_generation_logits", "kv_cache_type"),
)
_AGAIN = "build the engine again"


def read_ranks(
    folder: Path, config: Mapping[str, Any], findings: list[Finding]
) -> dict[int, dict[str, Tensor]]:
    """The tensors of every rank whose file is complete; errors of other files are added to `findings`."""
    world_size = mapping_of(config).world_size
    files = rank_files(folder, ".safetensors", world_size)
    findings += missing_ranks(files, ".safetensors", world_size, "checkpoint", _CONVERT)
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


def compare_ranks(config: Mapping[str, Any], ranks: Mapping[int, Mapping[str, Tensor]]) -> Iterator[Finding]:
    """Finds tensors that are missing, have another shape or dtype, or are not the model's.

    Each rank has at most one finding of each kind.
    """
    sizes, mapping = sizes_of(config), mapping_of(config)
    if sizes is None or misfit(sizes, mapping, fp8=False):
        return
    weights = tuple(FAMILIES[sizes.architecture].weights(sizes))
    for rank, tensors in ranks.items():
        placed = list(place(weights, sizes, mapping, rank))
        demanded = {name: entry for item in placed for name, entry in _demanded(config, item).items()}
        if EMBEDDING in tensors:  # TensorRT-LLM takes it for the head if there is none
            demanded = {name: entry for name, entry in demanded.items() if name != _HEAD or name in tensors}
        yield from _compare_rank(f"rank{rank}.safetensors", demanded, tensors)


def _compare_rank(
    file: str, demanded: Mapping[str, tuple[str, tuple[int, ...]]], tensors: Mapping[str, Tensor]
) -> Iterator[Finding]:
    missing = [name for name in demanded if name not in tensors]
    if missing:
        yield Finding(file, f"{missing[0]}: is missing{_more(missing)}", _CONVERT)
    there = {name: tensors[name] for name in demanded if name in tensors}
    misshapen = [name for name, tensor in there.items() if tensor.shape != demanded[name][1]]
    if misshapen:
        name = misshapen[0]
        shapes = f"has shape {list(there[name].shape)}, but its config demands {list(demanded[name][1])}"
        yield Finding(file, f"{name}: {shapes}{_more(misshapen)}", _CONVERT)
    others = [name for name, tensor in there.items() if tensor.dtype != demanded[name][0]]
    if others:
        name = others[0]
        dtypes = f"has dtype {there[name].dtype}, but its config demands {demanded[name][0]}"
        yield Finding(file, f"{name}: {dtypes}{_more(others)}", _CONVERT)
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
        findings += [] if draft else compare_ranks(model, ranks)
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
    findings += compare_ranks(config, ranks)
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
