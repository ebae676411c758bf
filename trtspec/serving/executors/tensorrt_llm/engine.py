"""An engine directory of TensorRT-LLM, checked before it is served in this process, and its KV budget.

The keys are those of `Engine.save` (`tensorrt_llm/builder.py`). An engine that would load for minutes and
then fail, or load and misbehave, is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Limits
from trtspec.serving.executors.limits import DRAFT_TOKENS_EXTERNAL, INSIDE, engine_config, limits_of
from trtspec.serving.executors.tensorrt_llm.runtime_draft import RuntimeDraft

IGNORED_WITH_DRAFTS = frozenset({"min_p"})
"""The options that an engine for external drafts ignores, also without a draft: it decodes all requests in
`DecodingMode::ExternalDraftTokens`, which lacks `kUseMinP` (`executor/types.h`, `getDecodingMode`)."""
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class TrtLlmEngine:
    """An engine that this process can serve."""

    folder: Path
    limits: Limits
    max_attention_window: int | None
    """The number of tokens that a token sees; None for the whole sequence."""
    weight_bytes: int
    """The size of the engine's file."""
    kv_bytes: int
    """The size of a token in the engine's KV cache."""
    enable_chunked_context: bool = True
    """True if a prompt may take several iterations."""
    logits_dtype: str = "float32"
    own_draft: RuntimeDraft | None = None
    """The engine's own draft; None if it has none."""


def read_engine(
    folder: Path, release: str, enable_chunked_context: bool = True, own_draft: RuntimeDraft | None = None
) -> TrtLlmEngine:
    """Returns the engine; raises `EngineLoadError` if this release cannot run it in one process."""
    with engine_config(folder) as document:
        model, build = document["pretrained_config"], document["build_config"]
        _check(folder, release, document)
        limits = limits_of(document)
        # Without chunks a prompt fits an iteration. The runtime ignores the build's max_input_len
        # (`batch_manager/trtGptModel.h`).
        most = limits.max_input_len if enable_chunked_context else int(build["max_num_tokens"])
        longest, mode = min(limits.max_input_len, most), int(build["speculative_decoding_mode"])
        _check_own_draft(folder, mode, int(build["max_draft_len"]), own_draft)
        # The engine lacks the window for the runtime: `LLaMAConfig.from_hugging_face` drops it.
        window = int(limits.max_seq_len if model.get("sliding_window") is None else model["sliding_window"])
        return TrtLlmEngine(
            folder=folder,
            limits=replace(
                limits,
                max_input_len=longest,
                ignored_options=IGNORED_WITH_DRAFTS
                if mode == DRAFT_TOKENS_EXTERNAL
                else limits.ignored_options,
            ),
            max_attention_window=None if window >= limits.max_seq_len else window,
            weight_bytes=sum(file.stat().st_size for file in folder.glob("rank0*")),
            kv_bytes=_kv_bytes(model),
            enable_chunked_context=enable_chunked_context,
            logits_dtype=str(model.get("logits_dtype", "float32")),
            own_draft=own_draft,
        )


def _check(folder: Path, release: str, document: dict[str, Any]) -> None:
    version, plugins = document["version"], document["build_config"]["plugin_config"]
    if version != release:
        problem = f"was built by TensorRT-LLM {version}, but this is {release}"
        raise EngineLoadError(folder, f"{problem}; serve it with the image of {version}, or build it again")
    ranks = document["pretrained_config"]["mapping"]["world_size"]
    if ranks != 1:
        problem = f"has {ranks} ranks, but one process runs only engines of one rank"
        raise EngineLoadError(folder, f"{problem}; serve it with layout: bls")
    if not (folder / "rank0.engine").is_file():
        raise EngineLoadError(folder, "has no rank0.engine; build it again")
    if not plugins["use_paged_context_fmha"]:
        problem = "was built without use_paged_context_fmha, so no round can reuse the KV cache of the"
        raise EngineLoadError(folder, f"{problem} previous one; build it again")


def _check_own_draft(folder: Path, mode: int, drafts: int, own_draft: RuntimeDraft | None) -> None:
    """Raises `EngineLoadError` unless the engine was built for the draft."""
    if own_draft is None:
        if mode in INSIDE:
            problem = "drafts by itself, but config.pbtxt lacks the parameters for that"
            raise EngineLoadError(folder, f"{problem}; write the model repository again")
    elif (own_draft.mode, own_draft.num_drafted) != (mode, drafts):
        built = f"{folder} was built for mode {mode} with max_draft_len {drafts}"
        given = f"this is of mode {own_draft.mode} with {own_draft.num_drafted}"
        raise EngineLoadError(own_draft.key, f"{own_draft}: {built}, and {given}")


def _kv_bytes(model: dict[str, Any]) -> int:
    """Returns the bytes of a token in all layers (`calculateCacheSizePerToken` of kvCacheManager.cpp)."""
    heads = model.get("num_key_value_heads") or model["num_attention_heads"]
    head_size = model.get("head_size") or model["hidden_size"] // model["num_attention_heads"]
    quantized = (model.get("quantization") or {}).get("kv_cache_quant_algo")
    element = 1 if quantized else _BYTES[model["dtype"]]
    layers = int(model["num_hidden_layers"])
    if "eagle_net_config" in model:
        layers += int(model["eagle_net_config"]["num_hidden_layers"])
    return 2 * layers * int(heads) * int(head_size) * element


_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class KvBudget:
    """The size of one engine's KV cache, in the terms of `KvCacheConfig`."""

    free_gpu_memory_fraction: float
    """The share of the memory that is free after the engine is loaded."""
    max_tokens: int | None = None
    """The largest number of tokens in the cache; None for no limit."""


def tokens_of_each(free: int, fraction: float, engines: Sequence[TrtLlmEngine]) -> int:
    """Returns the number of tokens of each KV cache if all have the same number.

    `free` is in bytes, before any engine is loaded. The caches together take `fraction` of the memory that
    the weights leave. Draft and target cache the same sequences, so a larger cache of one would be useless.

    TensorRT-LLM takes its fraction of the memory that is free at the time. The draft is loaded first, with
    this number as its limit: without one it would take nearly all memory, and the target would not fit. The
    target then takes the same fraction of the rest, so activations and buffers need no estimate here.
    """
    left = free - sum(engine.weight_bytes for engine in engines)
    tokens = int(max(0, left) * fraction) // sum(engine.kv_bytes for engine in engines)
    return min(tokens, _MOST_TOKENS)
