"""Commands of `trtllm-serve`, with the YAML file of `--config` or `--extra_llm_api_options`.

Options are those of TensorRT-LLM 1.0 to 1.2 (`tensorrt_llm/commands/serve.py`), and of 1.3 and later those
in `tests/unittest/api_stability/references/trtllm_serve_cli.yaml`. The file's keys are those of
`tensorrt_llm/llmapi/llm_args.py`, up to 1.3 where a key has another name there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trtspec.recipe.migration.command import Option, Syntax, names_in, options
from trtspec.recipe.migration.drafts import LENGTH, METHOD, MODEL, SCHEDULE, STOP, carry, draft_reading
from trtspec.recipe.migration.reading import (
    FOREIGN_CODE,
    OF_DEPLOY,
    FlagKey,
    FlagReading,
    FlagTable,
    document,
    dtype,
    is_whole,
    kv_cache,
    switch,
    tokens,
    weights,
    whole,
)
from trtspec.recipe.migration.tool import MigrationTool, OwnParser

# Both lists were written by `tests/servers/write_switches.py`.
SWITCHES = names_in("""
    --allow_request_chat_template --enable_attention_dp --enable_chunked_prefill --enable_visual_gen
    --fail_fast_on_attention_window_too_large --grpc --no_telemetry --telemetry --trust_remote_code
""")
"""The flags without a value; any other has one."""
LATER = names_in("""
    --agent_percentage --agent_types --allow_request_chat_template --enable_attention_dp --enable_visual_gen
    --generation_config --grpc --kv_cache_dtype --middleware --no_telemetry --num_input_processor_workers
    --num_media_load_workers --num_serve_frontends --post_processor_hook --report_addr --served_model_name
    --telemetry --video_pruning_rate --visual_gen_args
""")
"""The flags that releases after 1.2 added."""

_FILE = "--extra_llm_api_options"
_SHARED = {
    "revision": FlagKey("target.revision"),
    "tensor_parallel_size": FlagKey("target.parallel.tensor", whole),
    "pipeline_parallel_size": FlagKey("target.parallel.pipeline", whole),
    "max_batch_size": FlagKey("engine.max_batch_size", whole),
    "max_seq_len": FlagKey("engine.max_seq_len", tokens),
    "max_num_tokens": FlagKey("engine.max_num_tokens", tokens),
    "enable_chunked_prefill": FlagKey("engine.enable_chunked_context", switch),
}
_IN_FILE = {
    **_SHARED,
    "dtype": FlagKey("target.dtype", dtype),
    "max_input_len": FlagKey("engine.max_input_len", tokens),
    "kv_cache_config.dtype": FlagKey("target.quantization.kv_cache", kv_cache),
    "quant_config.quant_algo": FlagKey("target.quantization.weights", weights),
    "quant_config.kv_cache_quant_algo": FlagKey("target.quantization.kv_cache", kv_cache),
}
_KEYS = {
    **{f"--{name}": key for name, key in _SHARED.items()},
    "--kv_cache_dtype": FlagKey("target.quantization.kv_cache", kv_cache),
    "--served_model_name": FlagKey("serving.model_name"),
}
_MEMORY, _RUNS = "the server computes its memory by itself", "how TensorRT-LLM runs a model, not which"
_NO_KEY = "a recipe has no key for it"
_SET_ELSEWHERE = {
    _FILE: "trtspec writes this file",
    "--backend": "engine.backend says it",
    "--host": OF_DEPLOY,
    "--port": OF_DEPLOY,
    "--max_beam_width": "speculation has no beams",
    "--gpus_per_node": "hardware.count says it",
}
_LOST_IN_FILE = {
    "kv_cache_config": _MEMORY,
    "kv_cache_config.enable_block_reuse": "prefixes are always reused",
    "cuda_graph_config": _RUNS,
    "disable_overlap_scheduler": "trtspec sets it where the method needs it",
    "print_iter_log": _RUNS,
    "enable_attention_dp": _RUNS,
    "speculative_config.is_public_pool": "trtspec sets it: false",
    "speculative_config.is_use_oldest": "trtspec sets it: false",
    "speculative_config": "a recipe has no key for it; TensorRT-LLM's own default counts",
}
_METHODS = {
    "DraftTarget": "draft_model",
    "Draft_Target": "draft_model",
    "NGram": "ngram",
    "Eagle": "eagle3",  # With the head of EAGLE-3: in the PyTorch backend `eagle3_one_model` is its default.
    "Eagle3": "eagle3",
    "Medusa": "medusa",
    "MTP": "mtp",
    "Lookahead": "lookahead",
}
_OF_DRAFTS = {
    "decoding_type": FlagKey(METHOD, lambda text: _METHODS.get(text, text)),
    **dict.fromkeys(("speculative_model", "speculative_model_dir"), FlagKey(MODEL)),
    **dict.fromkeys(("max_draft_len", "num_nextn_predict_layers"), FlagKey(LENGTH, whole)),
    "max_matching_ngram_size": FlagKey("speculation.method.prompt_lookup_max", whole),
    "max_window_size": FlagKey("speculation.method.window_size", whole),
    "max_ngram_size": FlagKey("speculation.method.ngram_size", whole),
    "max_verification_set_size": FlagKey("speculation.method.verification_set_size", whole),
}
"""The keys of `speculative_config`."""
_SAME_LENGTH = names_in(
    "allow_advanced_sampling begin_thinking_phase_token eagle3_layers_to_capture eagle3_model_arch "
    "eagle3_one_model end_thinking_phase_token greedy_sampling is_keep_all is_public_pool is_use_oldest "
    "load_format mtp_eagle_one_model num_eagle_layers num_medusa_heads posterior_threshold relaxed_delta "
    "relaxed_topk use_mtp_vanilla use_rejection_sampling use_relaxed_acceptance_for_thinking"
)
"""The other keys that say nothing of how much is drafted."""
_SCHEDULE, _MOST = "speculative_config.draft_len_schedule", "speculative_config.max_concurrency"
_BACKENDS = {"pytorch": "tensorrt_llm_pytorch", "tensorrt": "tensorrt_llm", "trt": "tensorrt_llm"}
_SYNTAX = Syntax(
    aliases={
        "--tp_size": "--tensor_parallel_size",
        "--pp_size": "--pipeline_parallel_size",
        "--cp_size": "--context_parallel_size",
        "--ep_size": "--moe_expert_parallel_size",
        "--cluster_size": "--moe_cluster_parallel_size",
        "--kv_cache_free_gpu_memory_fraction": "--free_gpu_memory_fraction",
        "--config": _FILE,
        "--hf_revision": "--revision",
    },
    switches=SWITCHES,
    dash="_",
    folds=True,
)
_LOST = {
    **dict.fromkeys(LATER, "TensorRT-LLM up to 1.2 has no such flag"),
    "--trust_remote_code": FOREIGN_CODE,
}
FLAGS = FlagTable(_SYNTAX, _KEYS, _SET_ELSEWHERE, _LOST)
"""The flags of `trtllm-serve`. Click itself takes only what is written with underscores."""


def read(words: Sequence[str], reading: FlagReading) -> None:
    """Reads the words after `trtllm-serve`, and its file; raises TrtspecError for an unreadable file."""
    flags = FLAGS.of_parser(reading.own_flags)
    items = list(options(words[words[:1] == ["serve"] :], flags.syntax))
    for item in items:
        if isinstance(item, str):
            reading.take_model(item)
        elif item.name == "--backend" and item.value in _BACKENDS:
            reading.set("engine.backend", _BACKENDS[item.value], item.written)
        elif item.name != _FILE:
            reading.take(item, flags)
    for item in items:  # What the file says wins over the command line (`update_llm_args_with_extra_dict`).
        if isinstance(item, Option) and item.name == _FILE:
            _read_file(item.value or "", reading)


def _read_file(path: str, reading: FlagReading) -> None:
    drafts = draft_reading(reading)
    for key, value in _flat(document(path, reading)):
        section, _, name = key.partition(".")
        flag = f"{path} {key}"
        option = Option(flag, key, str(value))
        if section == "speculative_config" and name in _OF_DRAFTS:
            drafts.convert(option, _OF_DRAFTS[name])
        elif key == _SCHEDULE and isinstance(value, dict) and all(type(least) is int for least in value):
            drafts.set(SCHEDULE, _from(value), flag)
            if 1 in value:
                reading.say(flag, "each K is from so many requests on, as in 1.2; in 1.3 it is up to so many")
        elif key == _MOST and is_whole(str(value)):
            drafts.set(STOP, int(value) + 1, flag)
        elif section == "speculative_config" and name not in _SAME_LENGTH:
            drafts.miss(flag, _NO_KEY)
        elif key == "backend" and str(value) in _BACKENDS:
            reading.set("engine.backend", _BACKENDS[str(value)], flag)
        elif key in _IN_FILE:
            reading.convert(option, _IN_FILE[key])
        else:
            reading.lose(flag, _LOST_IN_FILE.get(key, _LOST_IN_FILE.get(section, _NO_KEY)))
    carry(drafts, reading)


def _from(lengths: Mapping[int, int]) -> dict[int, int]:
    """Returns K by the least number of requests, as 1.2 does; 1.3 has the largest, and 0 beyond the last."""
    known = dict(sorted(lengths.items()))
    up_to = zip([1, *(most + 1 for most in known)], [*known.values(), 0], strict=True)
    return known if 1 in known else dict(up_to)


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted keys with their values; a null is as good as no key."""
    for key, value in values.items():
        if isinstance(value, dict) and value and f"{before}{key}" != _SCHEDULE:
            yield from _flat(value, f"{before}{key}.")
        elif value is not None:
            yield f"{before}{key}", value


TOOL = MigrationTool(
    "trtllm-serve",
    "tensorrt_llm_pytorch",
    (("trtllm-serve",), ("-m", "tensorrt_llm.commands.serve")),
    read,
    images=("nvidia/tensorrt-llm/release",),
    serves="2,048 requests at once",
    num_tokens=lambda _: 8192,
    own_parser=OwnParser("trtllm-serve", "tensorrt_llm.commands.serve:serve"),
)
