"""vLLM's OpenAI server (`vllm serve`): the arguments of 0.32 and 0.33.

They are those of `EngineArgs` and of `SpeculativeConfig`.
"""

from __future__ import annotations

import json
from typing import Any

from trtspec.backends.launch import ServerLaunch
from trtspec.backends.served.inputs import LaunchInputs, LaunchOption, words
from trtspec.methods.method import HETEROGENEOUS, PARALLEL


def launch(wanted: LaunchInputs) -> ServerLaunch:
    target = wanted.target
    options: dict[str, LaunchOption] = {
        "--revision": target.revision,
        "--tokenizer-revision": target.revision,
        "--served-model-name": wanted.names,
        "--load-format": "safetensors",
        "--dtype": wanted.dtype,
        "--quantization": "fp8" if target.quantize else None,
        "--kv-cache-dtype": "fp8" if wanted.fp8_kv_cache else None,
        "--kv-cache-memory-bytes": wanted.kv_bytes,
        "--tensor-parallel-size": wanted.tensor,
        "--pipeline-parallel-size": wanted.pipeline if wanted.pipeline > 1 else None,
        "--max-num-seqs": wanted.max_batch_size,
        "--max-model-len": wanted.max_seq_len,
        "--max-num-batched-tokens": wanted.max_num_tokens,
        "--no-enable-chunked-prefill": not wanted.enable_chunked_context,
        "--speculative-config": json.dumps(speculation(wanted)),
    }
    return ServerLaunch(
        backend="vllm",
        release=wanted.release.version,
        module="vllm.entrypoints.openai.api_server",
        module_words=("--model",),
        program=("vllm", "serve"),
        arguments=(target.place, *words(options)),
        image=wanted.image,
        served_model_name=wanted.names[0],
        models=wanted.folders,
    )


def speculation(wanted: LaunchInputs) -> dict[str, Any]:
    """Returns `--speculative-config`, which has the methods by the same names as a recipe.

    A draft has the target's ranks, dtype and KV cache, which vLLM asks for or gives it by itself.
    """
    draft, method = wanted.draft, wanted.method
    values: dict[str, Any] = {
        "method": method.kind,
        "num_speculative_tokens": wanted.num_draft_tokens,
        "model": draft.place if draft else None,
        "revision": draft.revision if draft else None,
        "quantization": "fp8" if draft and draft.quantize else None,
        HETEROGENEOUS: method.translates or None,
        PARALLEL: method.is_at_once or None,
        **method.options,
    }
    return {key: value for key, value in values.items() if value is not None}
