"""Commands of vLLM: `vllm serve` and `python -m vllm.entrypoints.openai.api_server`.

Flags and their values are those of release 0.32 (`vllm/engine/arg_utils.py`, `config/speculative.py`,
`entrypoints/launchers/cli_args.py`), and of 0.4 to 0.8 those on speculation, which articles show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtspec.backends.vllm.speculators import read_speculator
from trtspec.backends.vllm.switches import LISTS, SWITCHES
from trtspec.methods.table import METHODS
from trtspec.recipe.migration.command import Option, Syntax, options
from trtspec.recipe.migration.config_file import with_config
from trtspec.recipe.migration.drafts import DraftFlags
from trtspec.recipe.migration.reading import (
    FlagKey,
    FlagReading,
    dtype,
    is_whole,
    kv_cache,
    name,
    object_of,
    switch,
    tokens,
    weights,
    whole,
)
from trtspec.recipe.migration.tool import MigrationTool

_CONFIG = "--speculative-config"
_KEYS = {
    "--model": FlagKey("target.model"),
    "--revision": FlagKey("target.revision"),
    "--dtype": FlagKey("target.dtype", dtype),
    "--quantization": FlagKey("target.quantization.weights", weights),
    "--kv-cache-dtype": FlagKey("target.quantization.kv_cache", kv_cache),
    "--tensor-parallel-size": FlagKey("target.parallel.tensor", whole),
    "--pipeline-parallel-size": FlagKey("target.parallel.pipeline", whole),
    "--max-model-len": FlagKey("engine.max_seq_len", tokens),
    "--max-num-seqs": FlagKey("engine.max_batch_size", whole),
    "--max-num-batched-tokens": FlagKey("engine.max_num_tokens", tokens),
    "--enable-chunked-prefill": FlagKey("engine.enable_chunked_context", switch),
    "--served-model-name": FlagKey("serving.model_name", name),
}
# Flags that a recipe has no key for, by their reason.
_REASONS = {
    "trtspec deploy has it": ("--host", "--port", "--uds"),
    "trtspec deploy --api-keys takes a file of keys": ("--api-key",),
    "trtspec runs no code that comes with a model": (
        "--trust-remote-code",
        "--allow-deprecated-quantization",
    ),
    "the Hub's token comes from HF_TOKEN": ("--hf-token",),
    "the tokenizer is the target's own": ("--tokenizer", "--tokenizer-mode", "--tokenizer-revision"),
    "the server reckons its memory by itself": (
        "--gpu-memory-utilization",
        "--kv-cache-memory-bytes",
        "--block-size",
        "--num-gpu-blocks-override",
        "--swap-space",
        "--cpu-offload-gb",
        "--max-seq-len-to-capture",
    ),
    "prefixes are always reused": ("--enable-prefix-caching",),
    "replicas are kubernetes.replicas": ("--data-parallel-size",),
    "recipes name safetensors, from the Hub's cache or a folder": ("--load-format", "--download-dir"),
    "vLLM 0.9 and later have no such flag": (
        "--num-lookahead-slots",
        "--speculative-disable-mqa-scorer",
        "--disable-logprobs-during-spec-decoding",
        "--spec-decoding-acceptance-method",
        "--typical-acceptance-sampler-posterior-threshold",
        "--typical-acceptance-sampler-posterior-alpha",
        "--speculative-max-model-len",
        "--use-v2-block-manager",
    ),
    "a recipe has no number of requests from which drafts stop; policy: adaptive does that where it runs": (
        "--speculative-disable-by-batch-size",
    ),
    "a recipe serves no adapters there": (
        "--enable-lora",
        "--lora-modules",
        "--max-loras",
        "--max-lora-rank",
    ),
    "how vLLM runs a model, not which; a recipe has no key for it": (
        "--enforce-eager",
        "--compilation-config",
        "--optimization-level",
        "--attention-backend",
        "--distributed-executor-backend",
        "--disable-custom-all-reduce",
        "--async-scheduling",
        "--seed",
        "--device",
        "--generation-config",
        "--enable-expert-parallel",
    ),
    "a recipe has no key for it": (
        "--chat-template",
        "--reasoning-parser",
        "--enable-reasoning",
        "--tool-call-parser",
        "--enable-auto-tool-choice",
        "--disable-log-requests",
        "--enable-log-requests",
        "--disable-log-stats",
        "--hf-overrides",
        "--rope-scaling",
        "--rope-theta",
        "--max-logprobs",
        "--task",
        "--runner",
        "--limit-mm-per-prompt",
    ),
}
_LOST = {flag: reason for reason, flags in _REASONS.items() for flag in flags}
# What the flags of before 0.9, and those of today, are among the keys of --speculative-config.
_SPECULATIVE = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
    "--speculative-model": "model",
    "--num-speculative-tokens": "num_speculative_tokens",
    "--speculative-draft-tensor-parallel-size": "draft_tensor_parallel_size",
    "--speculative-model-quantization": "quantization",
    "--ngram-prompt-lookup-max": "prompt_lookup_max",
    "--ngram-prompt-lookup-min": "prompt_lookup_min",
}
_METHODS = {"[ngram]": "ngram"}
_MTP = "mtp"  # Also by the name of a family: `qwen3_next_mtp`, `deepseek_mtp` (`MTPModelTypes`).
_OTHERS = {
    "draft_tensor_parallel_size": FlagKey("draft.parallel.tensor", whole),
    "quantization": FlagKey("draft.quantization.weights", weights),
    "kv_cache_dtype": FlagKey("draft.quantization.kv_cache", kv_cache),
    "revision": FlagKey("draft.revision"),
    "parallel_drafting": FlagKey("speculation.method.parallel_drafting", switch),
    "prompt_lookup_min": FlagKey("speculation.method.prompt_lookup_min", whole),
    "prompt_lookup_max": FlagKey("speculation.method.prompt_lookup_max", whole),
}
SYNTAX = Syntax(
    aliases={
        "-tp": "--tensor-parallel-size",
        "-pp": "--pipeline-parallel-size",
        "-dp": "--data-parallel-size",
        "-dph": "--data-parallel-hybrid-lb",
        "-dpe": "--data-parallel-external-lb",
        "-dpm": "--data-parallel-multi-port-external-lb",
        "-q": "--quantization",
        "-sc": _CONFIG,
        "-cc": "--compilation-config",
        "-ep": "--enable-expert-parallel",
        "-O": "--optimization-level",
        "-spec-draft-tp": "--speculative-draft-tensor-parallel-size",
        "--device-memory-utilization": "--gpu-memory-utilization",
    },
    switches=SWITCHES | {flag.replace("--", "--no-", 1) for flag in SWITCHES},
    lists=LISTS,
    folds=True,
)
"""How vLLM's parser (`FlexibleArgumentParser`) reads words."""


def read(words: Sequence[str], reading: FlagReading) -> None:
    """Reads the words behind `vllm serve`, and what is said of drafts."""
    speculative: dict[str, tuple[Any, str]] = {}
    for item in options(with_config(words, reading), SYNTAX):
        if isinstance(item, str):
            reading.take_model(item)
        elif item.name.partition(".")[0] == _CONFIG:
            _merge(speculative, _config(item, reading), reading)
        elif key := _SPECULATIVE.get(item.name):
            _merge(speculative, {key: (item.value or "", item.written)}, reading)
        elif item.name.startswith("--no-") and (on := f"--{item.name[5:]}") in _KEYS:
            reading.set(_KEYS[on].name, item.value == "false", item.written)
        elif item.name.startswith("--no-") and item.name in SYNTAX.switches:
            reading.lose(item.written, _LOST.get(f"--{item.name[5:]}", "a recipe has no key for it"))
        elif item.name in SYNTAX.switches and item.name not in _KEYS:
            reading.lose(item.written, _LOST.get(item.name, "a recipe has no key for it"))
        else:
            reading.take(item, _KEYS, _LOST)
    _drafts(speculative, reading)


def _merge(
    known: dict[str, tuple[Any, str]], found: dict[str, tuple[Any, str]], reading: FlagReading
) -> None:
    for key in known.keys() & found.keys():
        reading.lose(known[key][1], f"{found[key][1]} comes later, and counts")
    known |= found


def _config(option: Option, reading: FlagReading) -> dict[str, tuple[Any, str]]:
    """Returns the keys of --speculative-config, as JSON or one of them behind a dot, with their flags."""
    _, dot, key = option.name.partition(".")
    if dot:
        return {key.replace("-", "_"): (option.value or "", option.written)}
    found = object_of(option.value or "")
    if found is None:
        reading.miss(option.written, "its value is no JSON object, in single quotes as a shell needs it")
        return {}
    return {key.replace("-", "_"): (value, f"{option.written} {key}") for key, value in found.items()}


def _drafts(speculative: dict[str, tuple[Any, str]], reading: FlagReading) -> None:
    drafts = DraftFlags(reading)
    for key, (value, flag) in speculative.items():
        text = str(value)
        if key == "method" or (key == "model" and text in ("ngram", "[ngram]")):
            drafts.method, drafts.method_flag = _method(text), flag
        elif key == "model":
            drafts.model, drafts.model_flag = text, flag
        elif key == "num_speculative_tokens" and is_whole(text):
            drafts.length, drafts.length_flag = int(text), flag
        elif key in _OTHERS:
            _other(drafts, Option(flag, key, text), _OTHERS[key])
        elif reason := _LOST_KEYS.get(key):
            (reading.miss if key == "num_speculative_tokens" else reading.lose)(flag, reason)
        else:
            reading.lose(flag, "a recipe has no key for it")
    if not speculative:
        read_speculator(drafts)
    drafts.carry()


def _method(text: str) -> str:
    """Returns a recipe's name of a method."""
    if text in METHODS:
        return text
    return _MTP if text.endswith(f"_{_MTP}") else _METHODS.get(text, text)


_LOST_KEYS = {
    "use_heterogeneous_vocab": "trtspec sets it where the vocabularies differ",
    "num_speculative_tokens": "it is no whole number",
    "disable_by_batch_size": _LOST["--speculative-disable-by-batch-size"],
    "max_model_len": "texts beyond it would have no drafts; engine.max_seq_len counts for both models",
}


def _other(drafts: DraftFlags, option: Option, key: FlagKey) -> None:
    try:
        drafts.others[key.name] = key.convert(option.value or ""), option.written
    except ValueError as error:
        drafts.reading.lose(option.written, str(error))


TOOL = MigrationTool(
    "vLLM",
    "vllm",
    (("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server"), ("-m", "vllm.entrypoints.api_server")),
    read,
    images=("vllm/vllm-openai", "vllm-openai:"),
    serves="256 requests at once, or 1,024 on a large GPU",
)
