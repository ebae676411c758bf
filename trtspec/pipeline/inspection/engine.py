"""Inspects the directories of TensorRT-LLM and of the torch backend: a checkpoint, and an engine.

Defaults of a `PretrainedConfig` are those of `tensorrt_llm/models/modeling_utils.py`, which silently
stand for keys that are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from trtspec.backends.table import backend_named
from trtspec.base.errors import EngineError, ModelError
from trtspec.base.findings import Finding, Severity, note
from trtspec.checkpoint import convert_options as ranks
from trtspec.checkpoint.convert_options import EMBEDDING, Placed, misfit, place
from trtspec.checkpoint.tensors import DTYPES, FP8
from trtspec.models.families import FAMILIES
from trtspec.models.families.family import FamilyTensor, shapes
from trtspec.models.heads import eagle, medusa
from trtspec.models.sizes import ExpertSizes, Sizes
from trtspec.models.source import LARGEST, Tensor, read_header
from trtspec.pipeline.engine.directory import MODES, maker_of, read_engine
from trtspec.pipeline.inspection.report import Report, finding, stored

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
OPTIONAL_SIZES = (
    "num_key_value_heads",
    "head_size",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
MOST_BLOCKS = 1 << 16  # layers times experts, each of which has tensors: far more than any model has


def sizes_of(config: Mapping[str, Any]) -> Sizes | None:
    """The sizes in a config; None for a family that trtspec lacks, or if a size is missing or impossible."""
    family = FAMILIES.get(str(config.get("architecture")))
    if family is None or not all(is_size(config.get(key)) for key in SIZES):
        return None
    if not all(is_size(config[key]) for key in OPTIONAL_SIZES if config.get(key)):
        return None
    heads, experts = config["num_attention_heads"], _experts(config) if family.experts else None
    if family.experts and experts is None:
        return None
    if config["num_hidden_layers"] * (experts.count if experts else 1) > MOST_BLOCKS:
        return None
    return Sizes(
        architecture=config["architecture"],
        **{key: config[key] for key in SIZES},
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_size") or max(config["hidden_size"] // heads, 1),
        tie_word_embeddings=bool(config.get("tie_word_embeddings")),
        experts=experts,
    )


def parameters(sizes: Sizes) -> int:
    """Returns the number of parameters of the model; what several ranks hold counts once."""
    return sum(map(prod, shapes(FAMILIES[sizes.architecture].weights(sizes)).values()))


def mapping_of(config: Mapping[str, Any]) -> ranks.Mapping:
    """The mapping in a config; a size that it does not have is 1."""
    sizes = section(config, "mapping")
    return ranks.Mapping(*(sizes[key] if is_size(sizes.get(key)) else 1 for key in ("tp_size", "pp_size")))


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object under a key of the config; an empty one if there is none."""
    found = config.get(key)
    return found if isinstance(found, dict) else {}


def _experts(config: Mapping[str, Any]) -> ExpertSizes | None:
    """The experts in a config, whose widths only TensorRT-LLM's Qwen tells from that of an MLP."""
    moe = section(config, "moe")
    if not (is_size(moe.get("num_experts")) and is_size(moe.get("top_k"))):
        return None
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    shared = config.get("moe_shared_expert_intermediate_size") or 0
    return ExpertSizes(moe["num_experts"], moe["top_k"], width, shared)


def is_size(value: Any) -> bool:
    """Returns True if a value of a config can be a size of a model, or of its mapping."""
    return type(value) is int and 0 < value <= LARGEST


_CHECKPOINT_KEYS = (
    *("architecture", "dtype", "logits_dtype", "num_hidden_layers", "hidden_size", "intermediate_size"),
    *("num_attention_heads", "num_key_value_heads", "head_size", "hidden_act", "vocab_size"),
    *("max_position_embeddings", "sliding_window", "rotary_base", "rotary_scaling", "qwen_type"),
    "producer",
)
# The keywords of `QuantConfig`.
_QUANTIZATION = {
    *("quant_algo", "kv_cache_quant_algo", "group_size", "smoothquant_val", "clamp_val", "use_meta_recipe"),
    *("has_zero_point", "pre_quant_scale", "exclude_modules", "mamba_ssm_cache_dtype"),
}
# What TensorRT-LLM takes for a key that is missing. It is wrong for every family.
_DEFAULTS = {
    "hidden_act": "gelu",
    "position_embedding_type": "learned_absolute",
    "rotary_base": "10000",
    "norm_epsilon": "1e-5",
}
_ANY_QWEN = "QWenForCausalLM"  # what ModelOpt calls all of them
_CONVERT_AGAIN = "convert the model with trtspec, which writes every key"


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts that a report lists of the model, by TensorRT-LLM's keys; None for what the config
    does not have.
    """
    quantization, sizes = section(config, "quantization"), sizes_of(config)
    mapping = mapping_of(config)
    return {
        **{key: config.get(key) for key in _CHECKPOINT_KEYS},
        "parameters": parameters(sizes) if sizes else None,
        "quant_algo": quantization.get("quant_algo"),
        "kv_cache_quant_algo": quantization.get("kv_cache_quant_algo"),
        "tp_size": mapping.tp_size,
        "pp_size": mapping.pp_size,
    }


def oddities(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Finds what TensorRT-LLM refuses, or silently misreads."""
    yield from _family(config)
    yield from _sizes(config)
    yield from _numbers(config)
    yield from _parallel(config)


def _family(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Finds keys that are missing or wrong, with which TensorRT-LLM would build another model."""
    architecture = str(config.get("architecture"))
    if architecture in (medusa.TARGET_ARCHITECTURE, eagle.TARGET_ARCHITECTURE):
        # A model of the family that `model_type` names, with heads; EAGLE's is always a Llama.
        kind = config.get("model_type", "llama")
        named = (name for name, family in FAMILIES.items() if family.name == kind)
        architecture = next(named, architecture)
    if architecture not in FAMILIES:
        yield note("architecture", f"{architecture} is not supported by trtspec")
        if architecture == _ANY_QWEN and not config.get("qwen_type"):
            problem = "is missing; TensorRT-LLM would silently leave out the norms of a Qwen3"
            yield Finding("qwen_type", problem, _CONVERT_AGAIN)
        return
    keys = FAMILIES[architecture].keys
    for name in (name for name in FAMILIES[architecture].needs if config.get(name) is None):
        yield Finding(name, "is missing; TensorRT-LLM would build another model without it", _CONVERT_AGAIN)
    its_own = {key.name for key in keys}
    for name, default in _DEFAULTS.items():
        if config.get(name) is None and name not in its_own:
            yield Finding(name, f"is missing; TensorRT-LLM uses {default}", _CONVERT_AGAIN)
    for key in keys:
        found = config.get(key.name)
        if (key.default if found is None else found) != key.value:
            problem = f"is {found}, not {key.value}; {key.otherwise}"
            yield Finding(key.name, problem, _CONVERT_AGAIN)


def _sizes(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Finds sizes that no model has, so that no engine can be built of it."""
    for where in (config, section(config, "mapping")):
        keys = (*SIZES, *OPTIONAL_SIZES) if where is config else ("tp_size", "pp_size", "cp_size")
        for key in keys:
            found = where.get(key)
            # 0 stands for what is left out, but for the layers and the like.
            if found is not None and not is_size(found) and (found or key in SIZES):
                problem = f"is {found!r:.40}, and must be a whole number from 1 to {LARGEST}"
                yield Finding(key, problem, _CONVERT_AGAIN)
    layers = config.get("num_hidden_layers", 0)
    if is_size(layers) and layers > MOST_BLOCKS:
        yield Finding("num_hidden_layers", f"is {layers}, which is more than any model has", _CONVERT_AGAIN)


def _numbers(config: Mapping[str, Any]) -> Iterator[Finding]:
    quantization = section(config, "quantization")
    unknown = sorted(quantization.keys() - _QUANTIZATION)
    if unknown:
        problem = f"has {', '.join(unknown)}, which TensorRT-LLM refuses with a TypeError"
        yield Finding("quantization", problem, "remove it from config.json")
    weights, cache = quantization.get("quant_algo"), quantization.get("kv_cache_quant_algo")
    if weights == "FP8" and cache is None:
        problem = (
            f"is {config.get('dtype')} although the weights are FP8; it takes twice the memory of an FP8 "
            "cache"
        )
        yield note("KV cache", problem, "quantization: {weights: fp8, kv_cache: fp8}")
    if cache == "FP8" and weights != "FP8":
        problem = "is FP8 but the weights are not: TensorRT-LLM silently turns paged context FMHA off"
        yield Finding("KV cache", problem, "quantization: {weights: fp8, kv_cache: fp8}")
    if config.get("logits_dtype", "float32") != "float32":
        problem = f"is {config['logits_dtype']}; Triton's templates declare logits as TYPE_FP32"
        yield note("logits_dtype", problem, "trtllm-build --logits_dtype float32")


def _parallel(config: Mapping[str, Any]) -> Iterator[Finding]:
    mapping, ranks, sizes = section(config, "mapping"), mapping_of(config), sizes_of(config)
    product = ranks.world_size * (mapping["cp_size"] if is_size(mapping.get("cp_size")) else 1)
    if mapping.get("world_size", 1) != product:
        problem = (
            f"world_size is {mapping.get('world_size')}, but the product of tp_size, pp_size and cp_size is "
            f"{product}"
        )
        yield Finding("mapping", problem, _CONVERT_AGAIN)
    if sizes is None:
        return
    is_fp8 = section(config, "quantization").get("quant_algo") == "FP8"
    if found := misfit(sizes, ranks, fp8=is_fp8):
        yield replace(found, subject="mapping")
    if sizes.vocab_size % ranks.tp_size:
        problem = f"{sizes.vocab_size} is not a multiple of tp_size; the last rank is padded with zero rows"
        yield note("vocab_size", problem)


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
_TENSORS = ".safetensors"


def read_ranks(
    folder: Path, config: Mapping[str, Any], findings: list[Finding]
) -> dict[int, dict[str, Tensor]]:
    """The tensors of every rank whose file is complete; errors of other files are added to `findings`."""
    world_size = mapping_of(config).world_size
    files = rank_files(folder, _TENSORS, world_size)
    findings += missing_ranks(files, _TENSORS, world_size, "checkpoint", _CONVERT)
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
        demanded = dict[str, tuple[str, tuple[int, ...]]]()
        for weight in weights:
            if placed := place(weight, sizes, mapping, rank):
                demanded |= _demanded(config, weight, placed)
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


def _demanded(
    config: Mapping[str, Any], weight: FamilyTensor, placed: Placed
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and shape of a weight and of the scales beside it, by tensor name."""
    quantization = section(config, "quantization")
    dtype, shape = weight.dtype or DTYPES.get(str(config.get("dtype")), ""), placed.shape
    if placed.name == EMBEDDING and not config.get("use_parallel_embedding"):
        shape = weight.parts[0].shape
    if not (weight.linear and quantization.get("quant_algo") == "FP8"):
        return {placed.name: (dtype, shape)}
    stem, experts = placed.name.removesuffix("weight"), weight.experts
    demanded = {
        placed.name: (FP8, shape),
        f"{stem}weights_scaling_factor": ("F32", (experts, 1) if experts else (1,)),
        f"{stem}activation_scaling_factor": ("F32", (1,)),
    }
    if quantization.get("kv_cache_quant_algo") == "FP8" and weight.name == "attention.qkv.weight":
        demanded[placed.stem + _CACHE] = ("F32", (1,))
    return demanded


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def inspect_engine(folder: Path, config: Mapping[str, Any]) -> Report:
    """The report of an engine directory; `config` is the content of its `config.json`."""
    model, build = section(config, "pretrained_config"), section(config, "build_config")
    backend = maker_of(str(config.get("version")))
    # A draft that lives in its target is no model by itself.
    draft = section(model, "draft").get("method")
    findings = [] if draft else list(oddities(model))
    try:
        read_engine(folder)
    except EngineError as error:
        findings.append(finding(error, folder, Severity.ERROR))
    else:
        findings += _oddities(build)
    if (suffix := backend_named(backend).rank_suffix) == _TENSORS:
        ranks = read_ranks(folder, model, findings)
        findings += [] if draft else compare_ranks(model, ranks)
        files = [folder / f"rank{rank}.safetensors" for rank in ranks]
        tensors = [tensor for rank in ranks.values() for tensor in rank.values()]
    else:
        world_size = mapping_of(model).world_size
        of_ranks = rank_files(folder, suffix, world_size)
        files, tensors = list(of_ranks.values()), []
        findings += missing_ranks(of_ranks, suffix, world_size, "engine", _AGAIN)
        findings += [Finding(file.name, "is empty", _AGAIN) for file in files if not file.stat().st_size]
    return Report(
        folder=folder,
        kind="engine",
        facts={
            "version": config.get("version"),
            "backend": backend,
            **facts(model),
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
    findings = list(oddities(config))
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
        facts=facts(config),
        stored=stored(tensor for tensors in ranks.values() for tensor in tensors.values()),
        files=(folder / "config.json", *(folder / f"rank{rank}.safetensors" for rank in ranks)),
        findings=tuple(findings),
    )


def _is_of_torch(folder: Path) -> bool:
    """Says whether a build has an engine of the torch backend beside the checkpoint."""
    try:
        return not read_engine(folder.parent / "engine").is_compiled
    except EngineError:
        return False
