"""Loading an engine: what the C++ runtime checks then, and the memory that it takes."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xgrammar

from tensorrt_llm import __version__
from tensorrt_llm.bindings.executor.config import (
    BatchingType,
    CommunicationMode,
    ExecutorConfig,
    GuidedDecodingConfig,
)
from tensorrt_llm.bindings.executor.errors import check, thrown
from tensorrt_llm.bindings.executor.lookahead import LOOKAHEAD, check_sizes
from tensorrt_llm.bindings.executor.medusa import EAGLE, MEDUSA, check_eagle, check_tree, without_heads
from tensorrt_llm.gpu import GPUS, Gpu
from tests.fakes.external_drafts import ExternalDrafts
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.guides.guides import Guides

EXTERNAL = 2
UNSUPPORTED = {"max_batch_size": None, "max_num_tokens": None, "max_queue_size": None, "max_beam_width": 1}


@dataclass(frozen=True)
class Plan:
    """A loaded engine; `taken` bytes of `gpu` are to be given back."""

    runtime: TorchExecutor | ExternalDrafts
    max_input_len: int
    max_seq_len: int
    max_draft_len: int
    vocab_size: int
    gpu: Gpu
    taken: int
    accepts: int
    """How many tokens of its own drafts a step accepts at most; 0 for an engine that drafts nothing."""
    logits_dtype: str

    def free(self) -> None:
        self.runtime.shutdown()
        self.gpu.used -= self.taken


def load(folder: Path, config: ExecutorConfig) -> Plan:
    path = folder / "config.json"
    check(path.is_file(), f"File does not exist: {path}", "runtime/gptJsonConfig.cpp")
    document = json.loads(path.read_text())
    pretrained, build = document["pretrained_config"], document["build_config"]
    device = _device(pretrained["mapping"], config)
    _check_options(config)
    engine = folder / "rank0.engine"
    check(engine.is_file(), f"Error opening engine file: {engine}", "runtime/tllmRuntime.cpp")
    if document["version"] != __version__:
        raise thrown(
            "[TensorRT-LLM][ERROR] Assertion failed: Failed to deserialize cuda engine.",
            "runtime/tllmRuntime.cpp",
        )
    checks = check_tree, check_sizes, check_eagle
    accepts = max([found(document, config) for found in checks])
    kv = config.kv_cache_config
    if build["speculative_decoding_mode"] == EXTERNAL:
        check(
            kv.enable_block_reuse,
            "KV cache block reuse must be enabled for speculative decoding target model",
            "batch_manager/trtGptModelInflightBatching.cpp",
        )
    chunked = config.enable_chunked_context and build["plugin_config"]["use_paged_context_fmha"]
    gpu = GPUS[device]
    taken, tokens = _take(gpu, engine.stat().st_size, kv, pretrained)
    window = min([*(kv.max_attention_window or []), build["max_seq_len"]])
    if tokens < window:
        message = f"Attention window size {window} exceeds upper bound {tokens} for available blocks."
        gpu.used -= taken
        check(not config.fail_fast_on_attention_window_too_large, message, "batch_manager/trtGptModel.h")
        raise NotImplementedError("the stand-in cannot make texts shorter than the engine")
    max_seq_len = build["max_seq_len"]
    runtime = _runtime(folder, document, window, config.guided_decoding_config)
    return Plan(
        runtime=ExternalDrafts(runtime) if build["speculative_decoding_mode"] == EXTERNAL else runtime,
        max_input_len=max_seq_len - 1 if chunked else min(max_seq_len - 1, build["max_num_tokens"]),
        max_seq_len=max_seq_len,
        max_draft_len=build["max_draft_len"],
        vocab_size=pretrained["vocab_size"],
        gpu=gpu,
        taken=taken,
        accepts=accepts,
        logits_dtype=pretrained["logits_dtype"],
    )


def _device(mapping: dict[str, Any], config: ExecutorConfig) -> int:
    """One process in an MPI world of its own."""
    parallel = config.parallel_config
    source, world_size = "executor/executorImpl.cpp", mapping["world_size"]
    if parallel is not None and parallel.communication_mode is CommunicationMode.ORCHESTRATOR:
        raise NotImplementedError("the stand-in spawns no workers")
    check(
        world_size == 1,
        "With communicationMode kLEADER, MPI worldSize is expected to be equal to tp*pp*cp when"
        " participantIds are not specified",
        source,
    )
    if parallel is None or parallel.device_ids is None:
        return 0
    ids = parallel.device_ids
    message = f"When specifying deviceIds, deviceIds ({len(ids)}) * numNodes (1) must be equal to tp*pp*cp"
    check(len(ids) == 1, message, source)
    if not 0 <= ids[0] < len(GPUS):
        message = "CUDA runtime error in cudaSetDevice(device): invalid device ordinal"
        raise thrown(f"[TensorRT-LLM][ERROR] {message}", "runtime/utils/sessionUtils.cpp")
    return ids[0]


def _check_options(config: ExecutorConfig) -> None:
    if config.batching_type is BatchingType.STATIC:
        raise thrown(
            "[TensorRT-LLM][ERROR] Static batching type is deprecated. Please use in-flight batching with "
            "CapacitySchedulerPolicy::kSTATIC_BATCH instead.",
            "executor/executorImpl.cpp",
        )
    for name, only in UNSUPPORTED.items():
        if getattr(config, name) != only:
            raise NotImplementedError(f"ExecutorConfig.{name}: the stand-in cannot do this")


def _take(gpu: Gpu, weights: int, kv: Any, pretrained: dict[str, Any]) -> tuple[int, int]:
    """The weights, then of what is free the cache's fraction, but no more than its tokens need.

    Returns the bytes of both and the cache's tokens.
    """
    heads, size = pretrained["num_key_value_heads"], pretrained["head_size"]
    element = {"float32": 4, "float16": 2, "bfloat16": 2}[pretrained["dtype"]]
    if pretrained["quantization"]["kv_cache_quant_algo"]:
        element = 1
    per_token = 2 * pretrained["num_hidden_layers"] * heads * size * element
    try:
        gpu.take(weights)
        fraction = 0.9 if kv.free_gpu_memory_fraction is None else kv.free_gpu_memory_fraction
        tokens = int(gpu.free * fraction) // per_token
        tokens = min(tokens, kv.max_tokens or tokens)
        gpu.take(tokens * per_token)
    except MemoryError:
        message = "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory"
        raise thrown(message, "runtime/tllmBuffers.h") from None
    return weights + tokens * per_token, tokens


def _runtime(
    folder: Path, document: dict[str, Any], window: int, guided: GuidedDecodingConfig | None
) -> TorchExecutor:
    """An engine sees the window that it is told of, whatever its model was made for."""
    pretrained = document["pretrained_config"] | {"sliding_window": window}
    with tempfile.TemporaryDirectory() as copy:
        build = document["build_config"]
        if build["speculative_decoding_mode"] in (MEDUSA, EAGLE):
            build = build | {"speculative_decoding_mode": 1}
            without_heads(folder / "rank0.engine", Path(copy, "rank0.safetensors"))
        else:
            if build["speculative_decoding_mode"] == LOOKAHEAD:
                build = build | {"speculative_decoding_mode": 1}
            Path(copy, "rank0.safetensors").symlink_to((folder / "rank0.engine").absolute())
        whole = document | {"pretrained_config": pretrained, "build_config": build}
        Path(copy, "config.json").write_text(json.dumps(whole))
        return TorchExecutor(Path(copy), guides=None if guided is None else _guides(guided, pretrained))


def _guides(config: GuidedDecodingConfig, pretrained: dict[str, Any]) -> Guides:
    """The vocabulary as xgrammar reads it (`TokenizerInfo::FromHuggingFace`)."""
    dtype = pretrained["logits_dtype"]
    check(dtype in ("float32", "float16"), "Unsupported logits data type.", "batch_manager/guidedDecoder.cpp")
    check(config.backend.name == "XGRAMMAR", "LLGuidance is not supported", "batch_manager/guidedDecoder.cpp")
    if config.tokenizer_str is None or config.stop_token_ids is None:
        raise NotImplementedError("GuidedDecodingConfig: the stand-in needs a tokenizer and stop tokens")
    kind = xgrammar.TokenizerInfo._detect_metadata_from_hf(config.tokenizer_str)
    tokens = xgrammar.TokenizerInfo(
        config.encoded_vocab or [],
        kind["vocab_type"],
        vocab_size=pretrained["vocab_size"],
        stop_token_ids=config.stop_token_ids,
        add_prefix_space=kind["add_prefix_space"],
    )
    vocabulary = tokens.decoded_vocab
    for token_id in config.stop_token_ids:
        vocabulary[token_id] = b""
    vocabulary += [b""] * (pretrained["vocab_size"] - len(vocabulary))
    return Guides(lambda size: vocabulary[:size], pretrained["vocab_size"])
