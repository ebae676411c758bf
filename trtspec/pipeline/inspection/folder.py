"""Finds out what a folder is, and what would make a conversion of it fail.

Of its weights only headers and scales are read, and no code of it is run. A build has parts, and is
inspected here: its inputs by the manifest, and whether all of its files are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError, TensorError
from trtspec.base.findings import Finding, Severity, errors, note, ok
from trtspec.checkpoint.blueprint import Prequantized, check_tensors, read_prequantized
from trtspec.checkpoint.tensors import FP8
from trtspec.models.download import cached_folder
from trtspec.models.families import family_of
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.reading import is_head, read_head
from trtspec.models.mtp import mtp_layers
from trtspec.models.pair import check_head, compare, past_embedding, read_member
from trtspec.models.source import (
    DTYPES,
    PICKLES,
    HfConfig,
    Source,
    Tensor,
    has_file,
    name_of,
    read_json,
    read_source,
    read_tensors,
    refuse_foreign,
    whole_of,
)
from trtspec.models.tokenizer import read_tokenizer
from trtspec.pipeline.engine.manifest import Manifest, read_manifest
from trtspec.pipeline.inspection.engine import inspect_checkpoint, inspect_engine
from trtspec.pipeline.inspection.report import Report, finding, stored

_SIZES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings"),
)
_KEYS = (
    "model_type",
    *_SIZES,
    *("hidden_act", "sliding_window", "rope_theta", "rope_scaling", "tie_word_embeddings"),
)
_LAYER = (
    *("model_type", "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "rope_theta", "rope_scaling"),
)


def inspect_model(folder: Path, config: Mapping[str, Any]) -> Report:
    """The report of a model folder; `config` is the content of its `config.json`."""
    config, findings = whole_of(HfConfig(folder / "config.json", config)).content, list[Finding]()
    tensors: Mapping[str, Tensor] = {}
    source, is_convertible, prequantized = None, False, None
    try:
        tensors = read_tensors(folder)
    except ModelError as error:
        findings.append(finding(error, folder, Severity.ERROR))
    else:
        source, is_convertible, prequantized = _convertible(folder, findings)
    tokenizer = None
    try:
        tokenizer = read_tokenizer(folder)
    except ModelError as error:
        findings.append(finding(error, folder, Severity.NOTE))
    findings += [found for found in _impossible(folder, config) if found not in findings]
    findings += past_embedding("model", source, tokenizer) if source else ()
    findings += _oddities(folder, config, tensors)
    if source and source.left_out:
        problem = f"is multimodal: engines have its text part, without {len(source.left_out)} tensors"
        findings.append(note("architecture", problem))
    if prequantized and not prequantized.has_kv_scales:
        problem = "has no scales of keys and values; kv_cache: fp8 uses 1.0"
        findings.append(note("KV cache", problem))
    architectures, own = config.get("architectures"), mtp_layers(source) if source else None
    facts = {
        "architecture": architectures[0] if architectures and isinstance(architectures, list) else None,
        "dtype": config.get("dtype") or config.get("torch_dtype"),
        "parameters": sum(prod(tensor.shape) for tensor in _weights(tensors)),
        **{key: config.get(key) for key in _KEYS},
        "tokenizer_size": tokenizer.size if tokenizer else None,
        "mtp_layers": own.count if own else None,
        **_quantization(config, source),
        "convertible": is_convertible and not errors(findings),
    }
    files = {folder / "config.json", *(tensor.file for tensor in tensors.values())}
    return Report(
        folder, "hugging_face", facts, stored(tensors.values()), tuple(sorted(files)), tuple(findings)
    )


def _convertible(folder: Path, findings: list[Finding]) -> tuple[Source | None, bool, Prequantized | None]:
    """The model if it can be read, whether trtspec converts it, and its FP8 scales if it has them.

    Problems are added to `findings`.
    """
    source = None
    try:
        source = read_source(folder)
        family = family_of(source)
        prequantized = read_prequantized(source, family.weights(source))
    except ModelError as error:
        severity = Severity.ERROR if isinstance(error, TensorError) else Severity.NOTE
        findings.append(finding(error, folder, severity))
        return source, False, None
    try:
        check_tensors(source, family.weights(source), prequantized)
    except TensorError as error:
        findings.append(finding(error, folder, Severity.ERROR))
    return source, True, prequantized


def _impossible(folder: Path, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields what is wrong with each size; an error of the first one may have been reported already."""
    sizes = HfConfig(folder / "config.json", config)
    for key in _SIZES:
        if isinstance(config.get(key), (int, float)):
            try:
                sizes.size(key)
            except ModelError as error:
                yield finding(error, folder, Severity.NOTE)


def _oddities(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[Finding]:
    vocabulary = config.get("vocab_size")
    if isinstance(vocabulary, int) and vocabulary % 8:
        problem = f"{vocabulary} is not a multiple of 8; tensor parallel ranks pad their share with zero rows"
        yield note("vocab_size", problem)
    if config.get("tie_word_embeddings") and "lm_head.weight" in tensors:
        problem = "is stored although it is tied to the embedding; trtspec refuses one that differs"
        yield note("lm_head.weight", problem)
    frequencies = [tensor for name, tensor in tensors.items() if name.endswith("rotary_emb.inv_freq")]
    if frequencies and frequencies[0].dtype != "F32":
        problem = (
            f"rotary frequencies are stored as {frequencies[0].dtype}, rounded; trtspec computes them again"
        )
        yield note(frequencies[0].name, problem)
    if config.get("auto_map"):
        yield note("auto_map", "the model brings Python code, which trtspec never runs")
    yield from _dtypes(config, tensors)
    yield from _other_weights(folder, {tensor.file.name for tensor in tensors.values()})


def _dtypes(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[Finding]:
    named = config.get("dtype") or config.get("torch_dtype")
    found = sorted({tensor.dtype for tensor in _weights(tensors)} & DTYPES.keys())
    if len(found) > 1:
        yield note("dtype", f"the weights are stored in {' and '.join(found)}")
    elif found and named in DTYPES.values() and DTYPES[found[0]] != named:
        yield note("dtype", f"config.json has {named}, but the weights are {DTYPES[found[0]]}")


def _other_weights(folder: Path, read: set[str]) -> Iterator[Finding]:
    others = [path.name for path in sorted(folder.iterdir()) if path.name not in read]
    for name in others:
        if Path(name).suffix == ".safetensors" and read:
            yield note(name, "is not in the index, so it is not read")
        if Path(name).suffix in PICKLES and read:
            yield note(name, "is pickle, which can run code when read; trtspec never opens it")


def _quantization(config: Mapping[str, Any], source: Source | None) -> dict[str, Any]:
    if source is not None and source.scheme is not None:
        return {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8" if source.scheme.kv_cache else None}
    settings = config.get("quantization_config")
    return {
        "quant_algo": name_of(settings) if isinstance(settings, dict) else None,
        "kv_cache_quant_algo": None,
    }


def _weights(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The tensors without rotary frequencies, and without a quantized model's scales and zero points."""
    return [
        tensor
        for name, tensor in tensors.items()
        if tensor.dtype == FP8 or not name.endswith(("_scale", "_zero_point", "inv_freq"))
    ]


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
    oddities = tuple(_oddities_of_head(head))
    return Report(folder, "head", _facts_of_head(head), stored(tensors), tuple(sorted(files)), oddities)


def _facts_of_head(head: HeadDescription) -> dict[str, Any]:
    layer = {f"layer_{name}": value for name, value in head.layer.items() if name in _LAYER}
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


def _oddities_of_head(head: HeadDescription) -> Iterator[Finding]:
    names = set(head.tensors)
    yield from head.oddities()
    if head.layer and "embed_tokens.weight" not in names:
        yield note("embed_tokens.weight", "is missing; the target's is used")
    read = {tensor.file for tensor in head.tensors.values()}
    for path in sorted(head.folder.iterdir()):
        if path.suffix in PICKLES and path not in read:
            yield note(path.name, "is pickle, which can run code when read; trtspec never opens it")


MANIFEST = "manifest.json"
_FEW = 5
_PART = re.compile(r"(target|draft)/(checkpoint|engine)/config\.json")
_AGAIN = "trtspec build RECIPE makes it again"


def inspect(place: str, target: str | None = None) -> Report:
    """Returns the report of a folder, or of a Hub model that this machine has; raises ModelError for neither.

    With a target, it compares a complete head or model with it, and a finding says whether it fits.
    """
    folder = _find(place)
    report = _inspected(folder)
    if target is None or errors(report.findings):
        return report
    compared = _compared(report, _find(target))
    if not errors(compared):
        compared.append(ok("target", f"{place} fits {target}"))
    return replace(report, findings=(*report.findings, *compared))


def _compared(report: Report, target: Path) -> list[Finding]:
    if report.kind == "head":
        return check_head(read_head(report.folder), read_source(target))
    if report.kind == "hugging_face":
        return compare(read_member(target), read_member(report.folder))
    problem = f"is {report.kind}, which cannot be compared with a target"
    raise ModelError(report.folder, problem, "name the folder of a head or of a model")


def _inspected(folder: Path) -> Report:
    if manifest := read_manifest(folder / MANIFEST):
        return _inspect_build(folder, manifest)
    config = read_json(folder / "config.json")
    if "pretrained_config" in config:
        return inspect_engine(folder, config)
    if "architecture" in config and "mapping" in config:
        return inspect_checkpoint(folder, config)
    if is_head(folder):
        return inspect_head(folder)
    return inspect_model(folder, config)


def _find(place: str) -> Path:
    folder = Path(place)
    if not folder.is_dir():
        cached = None if folder.exists() else cached_folder(place)
        if cached is None:
            refuse_foreign(folder, [folder.name])
            if folder.suffix in {".yaml", ".yml"} and folder.is_file():
                raise ModelError(
                    place, "is a recipe, not a folder", f"trtspec plan {place} shows what it builds"
                )
            if place.startswith((".", "/", "~")) or folder.exists():
                raise ModelError(place, "is not a folder", "name the folder of a model, head or engine")
            problem = "is neither a folder nor a Hub model in this machine's cache"
            raise ModelError(place, problem, f"download a model of the Hub first: hf download {place}")
        return cached
    if not has_file(folder / "config.json") and read_manifest(folder / MANIFEST) is None:
        refuse_foreign(folder, (path.name for path in folder.iterdir()), folder)
        below = sorted(str(config.parent) for config in folder.glob("*/*/config.json"))
        repair = f"name one of {', '.join(below)}" if below else "name the folder of a model or of an engine"
        raise ModelError(folder, "has no config.json", repair)
    return folder


def _inspect_build(folder: Path, manifest: Manifest) -> Report:
    """Returns the report of a finished build; findings of checkpoints and engines name their path in it."""
    paths = {name: folder / name for name in manifest.outputs}
    missing = [name for name, file in paths.items() if not file.is_file()]
    findings = [Finding(name, "is missing", _AGAIN) for name in missing[:_FEW]]
    if more := missing[_FEW:]:
        findings.append(Finding("", f"{len(more)} more files are missing", _AGAIN))
    made = {Path(name).parent for name in paths if _PART.fullmatch(name)}
    parts = sorted(made - {Path(name).parent for name in missing})
    for part in parts:
        for found in _inspected(folder / part).findings:
            subject = f"{part}: {found.subject}" if found.subject else str(part)
            findings.append(replace(found, subject=subject))
    return Report(
        folder=folder,
        kind="build",
        facts=_facts(manifest, [str(part) for part in parts]),
        stored={},
        files=(folder / MANIFEST, *(file for name, file in paths.items() if name not in missing)),
        findings=tuple(findings),
    )


def _facts(manifest: Manifest, parts: list[str]) -> Mapping[str, Any]:
    models = {
        role: " @ ".join(filter(None, (model.get("model"), model.get("revision"))))
        for role, model in manifest.models.items()
    }
    return {
        "name": manifest.name,
        "backend": manifest.backend,
        **models,
        "gpu": manifest.gpu and manifest.gpu.get("name"),
        "image": manifest.image,
        "recipe": manifest.recipe,
        "parts": ", ".join(parts) or None,
    }
