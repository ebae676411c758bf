"""Commands of vLLM: `vllm serve` and `python -m vllm.entrypoints.openai.api_server`.

Flags and their values are those of release 0.32 (`vllm/engine/arg_utils.py`, `config/speculative.py`,
`entrypoints/launchers/cli_args.py`), and of 0.4 to 0.8 those on speculation, which articles show.
`tests/servers/write_switches.py` writes those without a value, and those with several, as the parser has
them.

A draft of Speculators is served by its own name: vLLM takes target and method from its configuration, as
in `maybe_override_with_speculators` (vllm/transformers_utils/config.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trtspec.base.errors import ModelError, TrtspecError, UnavailableError
from trtspec.methods.method import AT_ONCE, HETEROGENEOUS, PARALLEL, TRANSLATES
from trtspec.methods.table import METHODS
from trtspec.models.download import explained
from trtspec.models.heads.reading import KIND
from trtspec.models.source import HfConfig, has_file, read_hf_config
from trtspec.recipe.gpus import GpuProduct
from trtspec.recipe.migration.command import OFF, Option, Syntax, names_in, options
from trtspec.recipe.migration.drafts import LENGTH, METHOD, MODEL, SCHEDULE, STOP, carry, draft_reading
from trtspec.recipe.migration.reading import (
    FOREIGN_CODE,
    KEYS_FILE,
    OF_DEPLOY,
    PLACES,
    FlagKey,
    FlagReading,
    FlagTable,
    Value,
    dtype,
    is_whole,
    kv_cache,
    number,
    object_of,
    switch,
    tokens,
    weights,
    whole,
    with_config,
)
from trtspec.recipe.migration.tool import LongerTexts, MigrationTool, OwnParser

SWITCHES = names_in("""
    --aggregate-engine-logging --allow-credentials --allow-deprecated-quantization --async-scheduling
    --calculate-kv-scales --cohere-is-reasoning-model --cudagraph-metrics --data-parallel-external-lb
    --data-parallel-hybrid-lb --data-parallel-multi-port-external-lb --dcp-q-replicate
    --disable-async-output-proc --disable-cascade-attn --disable-chunked-mm-input --disable-custom-all-reduce
    --disable-fastapi-docs --disable-frontend-multiprocessing --disable-hybrid-kv-cache-manager
    --disable-log-requests --disable-log-stats --disable-logprobs-during-spec-decoding
    --disable-mm-preprocessor-cache --disable-nccl-for-dp-synchronization --disable-sliding-window
    --disable-uvicorn-access-log --enable-auto-tool-choice --enable-batch-sharded-sampling
    --enable-chunked-prefill --enable-cumem-allocator --enable-dbo --enable-elastic-ep
    --enable-ep-weight-filter --enable-eplb --enable-expert-parallel --enable-fault-tolerance
    --enable-flash-late-interaction --enable-flashinfer-autotune --enable-force-include-usage --enable-hc-sp
    --enable-layerwise-nvtx-tracing --enable-log-deltas --enable-log-outputs --enable-log-requests
    --enable-logging-iteration-details --enable-lora --enable-mamba-cache-stochastic-rounding
    --enable-mamba-shared-prefix-checkpoint --enable-mfu-metrics --enable-mixed-moe-lora-format
    --enable-mm-embeds --enable-moe-shared-loras --enable-nccl-comm-suspend --enable-offline-docs
    --enable-per-request-metrics --enable-prefix-caching --enable-prompt-embeds --enable-prompt-tokens-details
    --enable-reasoning --enable-request-id-headers --enable-return-routed-experts --enable-scale-out
    --enable-server-load-tracking --enable-shm-tensor-arena --enable-sleep-mode --enable-ssl-refresh
    --enable-tokenizer-info-endpoint --enable-tower-connector-lora --enable-trace-replay --enforce-eager
    --exclude-tools-when-tool-choice-none --fail-on-environ-validation --fully-sharded-loras --grpc --headless
    --interleave-mm-strings --jit-monitor-verbose --kv-cache-metrics --kv-sharing-fast-prefill
    --language-model-only --log-error-stack --long-prefill-token-threshold-adaptive --mm-device-do-normalize
    --mm-encoder-only --multi-step-stream-outputs --numa-bind --ray-workers-use-nsight --return-sampling-mask
    --return-tokens-as-token-ids --scheduler-reserve-full-isl --skip-mm-profiling --skip-tokenizer-init
    --sleep-mode-offload-cudagraph --specialize-active-lora --speculative-disable-mqa-scorer
    --swa-bounded-replay --tokens-only --trust-remote-code --trust-request-chat-template
    --trust-request-mm-kwargs --use-fp64-gumbel --use-replayssm --use-tqdm-on-load --use-v2-block-manager -O0
    -O1 -O2 -O3
""")
"""The flags without a value."""

ONE_WAY = names_in("""
    --aggregate-engine-logging --calculate-kv-scales --data-parallel-multi-port-external-lb
    --disable-async-output-proc --disable-frontend-multiprocessing --disable-log-requests --disable-log-stats
    --disable-logprobs-during-spec-decoding --disable-mm-preprocessor-cache --enable-reasoning --grpc
    --headless --multi-step-stream-outputs --speculative-disable-mqa-scorer --use-v2-block-manager -O0 -O1 -O2
    -O3
""")
"""Those of them that have no `--no-` form."""

LISTS = names_in("""
    --allowed-media-domains --api-key --collect-detailed-traces --cpu-offload-params --cudagraph-capture-sizes
    --hf-token --ignore-patterns --kv-cache-dtype-skip-layers --logits-processors --lora-modules
    --lora-target-modules --numa-bind-cpus --numa-bind-nodes --offload-params --served-model-name
    --sleep-preserve-parameter-names
""")
"""The flags with as many values as words follow."""


_IN_NAMES = "speculator"
"""What publishers of this format have in the names of their models; others are not asked for on the Hub."""


def read_speculator(drafts: FlagReading, reading: FlagReading) -> None:
    """Makes a model of Speculators the draft, and its verifier the target.

    Raises TrtspecError if the configuration on the Hub cannot be read, because only it names them.
    """
    model, flag = str(reading.values.get("target.model", "")), reading.origins.get("target.model", "")
    config = _speculators_config(model)
    if config is None or KIND not in config.content:
        return
    described = config.section("speculators_config")
    verifier = described.section("verifier").get("name_or_path", str, "")
    if not verifier:
        raise TrtspecError(model, "is a draft of Speculators that names no verifier", _repair(model))
    proposals = described.get("proposal_methods", list, [])
    first = HfConfig(config.file, proposals[0] if proposals and isinstance(proposals[0], dict) else {})
    reading.values["target.model"] = verifier
    reading.say("target.model", f"{verifier}, which {model} is a draft for")
    if "serving.model_name" not in reading.values:
        reading.set("serving.model_name", model, flag)
    drafts.set(METHOD, config.get(KIND, str), flag)
    drafts.set(MODEL, model, flag)
    if length := first.get("speculative_tokens", int, None):
        drafts.set(LENGTH, length, flag)


def _speculators_config(model: str) -> HfConfig | None:
    """Returns a model's configuration; None if it has none here, and its name is not of this format."""
    file = Path(model).expanduser() / "config.json"
    if has_file(file):
        return read_hf_config(file)
    if _IN_NAMES not in model.lower():
        return None
    from huggingface_hub import hf_hub_download

    try:
        with explained(model, None):
            return read_hf_config(Path(hf_hub_download(model, "config.json")))
    except (ModelError, UnavailableError) as error:
        problem = f"is a draft of Speculators by its name, and its configuration cannot be read: {error}"
        raise TrtspecError(model, problem, _repair(model)) from None


def _repair(model: str) -> str:
    return f"name its target: vllm serve TARGET --spec-model {model}"


_CONFIG, _NAMES = "--speculative-config", "--served-model-name"
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
}
_SET_ELSEWHERE = {
    _NAMES: "serving.model_name and serving.aliases say it",
    "--no-enable-chunked-prefill": "engine.enable_chunked_context says it",
    "--host": OF_DEPLOY,
    "--port": OF_DEPLOY,
    "--uds": OF_DEPLOY,
    "--shutdown-timeout": "trtspec deploy --grace says it",
    "--api-key": KEYS_FILE,
    "--load-format": PLACES,
    "--download-dir": PLACES,
    "--tokenizer-revision": "target.revision says it",
}
_BEFORE = names_in(
    "--num-lookahead-slots --speculative-disable-mqa-scorer --disable-logprobs-during-spec-decoding "
    "--spec-decoding-acceptance-method --typical-acceptance-sampler-posterior-threshold "
    "--typical-acceptance-sampler-posterior-alpha --use-v2-block-manager --multi-step-stream-outputs "
    "--disable-async-output-proc --disable-log-requests --enable-reasoning --max-seq-len-to-capture --device"
)
_LOST = {
    "--trust-remote-code": FOREIGN_CODE,
    "--hf-token": "the Hub's token comes from HF_TOKEN",
    **dict.fromkeys(_BEFORE, "vLLM 0.9 and later have no such flag"),
}
# What the flags of before 0.9, and those of today, are among the keys of --speculative-config.
_SPECULATIVE = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
    "--speculative-model": "model",
    "--num-speculative-tokens": "num_speculative_tokens",
    "--speculative-draft-tensor-parallel-size": "draft_tensor_parallel_size",
    "--speculative-model-quantization": "quantization",
    "--speculative-disable-by-batch-size": "disable_by_batch_size",
    "--speculative-max-model-len": "max_model_len",
    "--ngram-prompt-lookup-max": "prompt_lookup_max",
    "--ngram-prompt-lookup-min": "prompt_lookup_min",
}
_LEAST, _MOST = f"{METHOD}.prompt_lookup_min", f"{METHOD}.prompt_lookup_max"
_DEPTH, _OWN = f"{METHOD}.suffix_decoding_max_tree_depth", "vLLM's default"
_RANGES = re.compile(r"\[(\s*\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]\s*,?)+\s*\]")
_NGRAM = ("ngram", "[ngram]")  # Before 0.9 it was a model by this name.
_MTP = "mtp"  # Also by the name of a family: `qwen3_next_mtp`, `deepseek_mtp` (`MTPModelTypes`).
_OF_DRAFTS = {
    "model": FlagKey(MODEL),
    "num_speculative_tokens": FlagKey(LENGTH, whole),
    "draft_tensor_parallel_size": FlagKey("draft.parallel.tensor", whole),
    "quantization": FlagKey("draft.quantization.weights", weights),
    "kv_cache_dtype": FlagKey("draft.quantization.kv_cache", kv_cache),
    "revision": FlagKey("draft.revision"),
    PARALLEL: FlagKey(AT_ONCE, switch),
    HETEROGENEOUS: FlagKey(TRANSLATES, switch),
    "prompt_lookup_min": FlagKey(_LEAST, whole),
    "prompt_lookup_max": FlagKey(_MOST, whole),
    "suffix_decoding_max_tree_depth": FlagKey(_DEPTH, whole),
    "suffix_decoding_max_cached_requests": FlagKey(f"{METHOD}.suffix_decoding_max_cached_requests", whole),
    "suffix_decoding_max_spec_factor": FlagKey(f"{METHOD}.suffix_decoding_max_spec_factor", number),
    "suffix_decoding_min_token_prob": FlagKey(f"{METHOD}.suffix_decoding_min_token_prob", number),
}
PER_BATCH_SIZE, _DISABLE = "num_speculative_tokens_per_batch_size", "disable_by_batch_size"
_LIMIT = {"max_model_len": "sequences beyond it have no drafts; engine.max_seq_len counts for both models"}
_SAME_LENGTH = names_in(
    "acceptance_method attention_backend code_revision disable_eagle_block_drop disable_logprobs "
    "disable_mqa_scorer disable_padded_drafter_batch draft_load_config draft_sample_method "
    "dspark_draft_topk enforce_eager index_share_for_mtp_iteration moe_backend posterior_alpha "
    "posterior_threshold rejection_sample_method synthetic_acceptance_length synthetic_acceptance_rate "
    "synthetic_acceptance_rates tensor_parallel_size use_local_argmax_reduction"
)
"""The other keys that say nothing of how much is drafted."""
_SYNTAX = Syntax(
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
    switches=SWITCHES | {flag.replace("--", OFF, 1) for flag in SWITCHES - ONE_WAY},
    lists=LISTS,
    folds=True,
)
_TABLE = FlagTable(_SYNTAX, _KEYS, _SET_ELSEWHERE, _LOST, of_drafts=(_CONFIG, *_SPECULATIVE))
_EARLIER = (*_BEFORE, *(flag for flag in _SPECULATIVE if not flag.startswith("--spec-")))
_RIVALS = names_in("""
    --api-server-count --long-prefill-token-threshold --max-num-scheduled-tokens --model-class-overrides
    --pooler-config --quantization-config --seed --show-hidden-metrics-for-version --tokenizer
    --tokenizer-mode
""")
FLAGS = _TABLE.with_beginnings(_RIVALS, _EARLIER)
"""The flags of release 0.32, read as its parser (`FlexibleArgumentParser`) reads them."""


def read(words: Sequence[str], reading: FlagReading) -> None:
    """Reads the words after `vllm serve`, and its flags for drafts."""
    drafts = draft_reading(reading)
    flags = FLAGS.of_parser(reading.own_flags)
    for item in options(with_config(words, flags.syntax.switches, reading), flags.syntax):
        if isinstance(item, str):
            reading.take_model(item)
        elif item.name.partition(".")[0] == _CONFIG:
            for option in _config(item, drafts):
                _draft(option, drafts)
        elif item.name == _NAMES:
            _name(item, reading)
        elif key := _SPECULATIVE.get(item.name):
            _draft(replace(item, name=key), drafts)
        elif item.name.startswith(OFF) and (on := f"--{item.name.removeprefix(OFF)}") in _KEYS:
            reading.set(_KEYS[on].name, item.value == "false", item.written)
        else:
            reading.take(item, flags)
    if not drafts.values:
        read_speculator(drafts, reading)
    carry(drafts, reading)
    _defaults(reading)


def _defaults(reading: FlagReading) -> None:
    """Writes vLLM's own defaults where a recipe has others (`vllm/config/speculative.py`)."""
    values, found = reading.values, dict[str, Value]()
    if values.get(METHOD) in ("ngram", "ngram_gpu"):
        found = {_LEAST: values.get(_MOST, 5), _MOST: values.get(_LEAST, 5)}
    elif values.get(METHOD) == "suffix":
        found = {LENGTH: values.get(_DEPTH, 24)}
    for key, value in found.items():
        if key not in values:
            reading.set(key, value, _OWN)


def _name(option: Option, reading: FlagReading) -> None:
    """Takes the names of the model for clients; answers contain the first."""
    first, *others = (option.value or "").split() or [""]
    reading.set("serving.model_name", first, option.written)
    if others:
        reading.set("serving.aliases", others, f"{option.written} {' '.join(others)}")


def _config(option: Option, drafts: FlagReading) -> Iterator[Option]:
    """Yields the keys of --speculative-config, as JSON or one of them behind a dot."""
    _, dot, key = option.name.partition(".")
    if dot:
        yield replace(option, name=key.replace("-", "_"))
        return
    found = object_of(option.value or "")
    if found is None:
        drafts.miss(option.written, "its value is no JSON object, in single quotes as a shell needs it")
    for key, value in (found or {}).items():
        if value is not None:
            yield Option(f"{option.written} {key}", key.replace("-", "_"), str(value))


def _draft(option: Option, drafts: FlagReading) -> None:
    """Takes one key of --speculative-config."""
    key, text, flag = option.name, option.value or "", option.written
    if key == "method" or (key == "model" and text in _NGRAM):
        is_family = text not in METHODS and text.endswith(f"_{_MTP}")
        drafts.set(METHOD, _MTP if is_family else text.strip("[]"), flag)
    elif key == "num_speculative_tokens" and not is_whole(text):
        drafts.miss(flag, "it is no whole number")
    elif key in _OF_DRAFTS:
        drafts.convert(option, _OF_DRAFTS[key])
    elif key == _DISABLE and is_whole(text) and int(text) > 1:
        drafts.set(STOP, int(text), flag)
    elif key == PER_BATCH_SIZE and _RANGES.fullmatch(text):
        # A gap between two ranges has the K of the one before.
        drafts.set(SCHEDULE, {first: length for first, _, length in sorted(json.loads(text))}, flag)
    else:
        tell = drafts.lose if key in _SAME_LENGTH else drafts.miss
        tell(flag, _LIMIT.get(key, "a recipe has no key for it"))


def _num_tokens(gpu: GpuProduct | None) -> int:
    """Returns what 0.32's server has (`EngineArgs.get_batch_defaults`), which is less on an A100."""
    if gpu is None or gpu.memory_gib < 70 or gpu.name.startswith("a100"):
        return 2048
    return 8192 if gpu.memory_gib < 160 else 16384


LONGER = LongerTexts("VLLM_ALLOW_LONG_MAX_MODEL_LEN", frozenset(("1", "true")), "--hf-overrides")
"""Its values are those of vllm/envs.py."""

TOOL = MigrationTool(
    "vLLM",
    "vllm",
    (("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server"), ("-m", "vllm.entrypoints.api_server")),
    read,
    images=("vllm/vllm-openai", "vllm-openai:"),
    serves="256 requests at once, or 1,024 on a large GPU",
    num_tokens=_num_tokens,
    longer=LONGER,
    own_parser=OwnParser(
        "vllm",
        "vllm.utils.argparse_utils:FlexibleArgumentParser",
        "vllm.entrypoints.launchers.cli_args:make_arg_parser",
    ),
)
