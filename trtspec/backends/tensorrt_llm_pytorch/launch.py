"""TensorRT-LLM's OpenAI server on its PyTorch backend (`trtllm-serve`).

It gets what `commands/serve.py` and `llmapi/llm_args.py` of TensorRT-LLM 1.0 to 1.2 accept. Its sizes are
options, since not all of these releases take them from a file of configuration, where the rest is.
"""

from __future__ import annotations

from typing import Any

from trtspec.backends.launch import ServerLaunch
from trtspec.backends.served.inputs import LaunchInputs, LaunchOption, words
from trtspec.base import yaml11

METHODS = {"draft_model": "DraftTarget", "ngram": "NGram", "eagle3": "Eagle", "mtp": "MTP"}
"""The `decoding_type` of each method (`DecodingBaseConfig.from_dict`)."""
FILE = "llm_api_options.yaml"


def launch(wanted: LaunchInputs) -> ServerLaunch:
    options: dict[str, LaunchOption] = {
        "--backend": "pytorch",
        "--tp_size": wanted.tensor,
        "--pp_size": wanted.pipeline,
        "--max_batch_size": wanted.max_batch_size,
        "--max_seq_len": wanted.max_seq_len,
        "--max_num_tokens": wanted.max_num_tokens,
        "--extra_llm_api_options": f"{{build}}/{FILE}",
    }
    return ServerLaunch(
        backend="tensorrt_llm_pytorch",
        release=wanted.release.version,
        module="tensorrt_llm.commands.serve",
        program=("trtllm-serve",),
        arguments=("serve", wanted.target.place, *words(options)),
        image=wanted.image,
        served_model_name=wanted.names[0],
        files={FILE: yaml11.dump(configuration(wanted))},
        models=wanted.folders,
    )


def configuration(wanted: LaunchInputs) -> dict[str, Any]:
    """Returns the file: fields of `LlmArgs`."""
    values: dict[str, Any] = {
        "revision": wanted.target.revision,
        "dtype": wanted.dtype,
        "enable_chunked_prefill": wanted.enable_chunked_context,
        "kv_cache_config": {"dtype": "fp8"} if wanted.fp8_kv_cache else None,
        # Without this it has no metrics for Prometheus.
        "return_perf_metrics": bool(wanted.release.metrics_path) or None,
        # Only a draft that is part of the target's model is run beside the scheduler's next step.
        "disable_overlap_scheduler": not wanted.method.is_head or None,
        "speculative_config": speculation(wanted),
    }
    return {key: value for key, value in values.items() if value is not None}


def speculation(wanted: LaunchInputs) -> dict[str, Any]:
    """Returns `speculative_config`; n-grams are looked up within the request, and the latest match counts."""
    method, draft = wanted.method, wanted.draft
    if method.in_target:
        return {"decoding_type": METHODS[method.kind], "num_nextn_predict_layers": wanted.num_draft_tokens}
    values: dict[str, Any] = {"decoding_type": METHODS[method.kind], "max_draft_len": wanted.num_draft_tokens}
    if draft is None:
        ngrams = {"max_matching_ngram_size": method.options["prompt_lookup_max"]}
        return {**values, **ngrams, "is_use_oldest": False, "is_public_pool": False}
    return {**values, "speculative_model_dir": draft.place}
