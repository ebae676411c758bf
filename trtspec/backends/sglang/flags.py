"""Commands of SGLang: those that are read, `python -m sglang.launch_server` and `sglang serve`, and ours.

SGLang has trees of drafts, of which each step proposes several tokens, and a recipe has no key for them.
Their flags are in `engine.extra_args`, and override those of a chain, which stand before them. The number of
steps stays K. `_handle_eagle_family` in arg_groups/speculative_hook.py of 0.5.23 needs all three numbers.

Flags and their values are those of release 0.5.23 (`sglang/srt/arg_groups/fields`, `server_args.py`).
`tests/servers/write_switches.py` writes those without a value, and those with several, as the parser has
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trtspec.backends.shared.servers import LaunchInputs
from trtspec.base.findings import Finding
from trtspec.pipeline.plan.resolved import Chooser
from trtspec.recipe.gpus import GpuProduct
from trtspec.recipe.migration.command import Option, Syntax, as_words, names_in, options
from trtspec.recipe.migration.drafts import LENGTH, METHOD, MODEL, carry, draft_reading
from trtspec.recipe.migration.reading import (
    FOREIGN_CODE,
    KEYS_FILE,
    OF_DEPLOY,
    PLACES,
    FlagKey,
    FlagReading,
    FlagTable,
    dtype,
    is_whole,
    kv_cache,
    tokens,
    weights,
    whole,
    with_config,
)
from trtspec.recipe.migration.tool import LongerTexts, MigrationTool, OwnParser
from trtspec.recipe.schema import Recipe

METHODS = {
    "draft_model": "STANDALONE",
    "ngram": "NGRAM",
    "eagle3": "EAGLE3",
    "eagle": "EAGLE",
    "mtp": "NEXTN",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
}
"""SGLang's name of each method (`SpeculativeAlgorithm` in sglang/srt/speculative/spec_info.py)."""
STEPWISE = ("STANDALONE", "EAGLE", "EAGLE3", "NEXTN")
"""Those that draft a token a step."""
ADAPTIVE, ADAPTIVE_FILE = "--speculative-adaptive", "--speculative-adaptive-config"
FILE, TOKENS = "speculative_adaptive.json", "--speculative-num-draft-tokens"
_UNQUANTIZED = "unquant"


def arguments(wanted: LaunchInputs) -> tuple[str, ...]:
    target = wanted.target
    options: dict[str, Any] = {
        "--model-path": target.place,
        "--revision": target.revision,
        "--served-model-name": wanted.names[0],
        "--load-format": "safetensors",
        "--dtype": wanted.checkpoint.dtype,
        "--quantization": "fp8" if target.quantize else None,
        "--kv-cache-dtype": "fp8_e4m3" if wanted.checkpoint.fp8_kv_cache else None,
        "--tp-size": wanted.checkpoint.mapping.tp_size,
        "--max-running-requests": wanted.options.max_batch_size,
        "--context-length": wanted.options.max_seq_len,
        "--chunked-prefill-size": wanted.options.max_num_tokens if wanted.enable_chunked_context else -1,
        "--enable-metrics": True,
        **speculation(wanted),
    }
    return as_words(options)


def speculation(wanted: LaunchInputs) -> dict[str, Any]:
    """Returns the options on drafts, which are chains of K tokens: SGLang counts the one before them too.

    Its n-grams would be a tree, which costs more rows to verify and asks for FlashInfer. They are of as many
    tokens as are looked up and drafted together. Without its own option, a draft would be quantized like the
    target. Without a path, NEXTN drafts with the target's own layers. A block of DFlash or DSpark takes no
    steps. DSpark gets the number of tokens that it proposes; otherwise its configuration decides.
    """
    method, draft, length = wanted.method, wanted.draft, wanted.num_draft_tokens
    algorithm = METHODS[method.kind]
    options: dict[str, Any] = {
        "--speculative-algorithm": algorithm,
        TOKENS: length + 1,
    }
    if algorithm in STEPWISE:
        options |= {"--speculative-num-steps": length, "--speculative-eagle-topk": 1}
        if wanted.schedule:  # It starts with a number of steps of the file, and changes both numbers.
            largest = max(wanted.schedule.values())
            options |= {TOKENS: largest + 1, "--speculative-num-steps": largest, ADAPTIVE: True}
            options[ADAPTIVE_FILE] = f"{{build}}/{FILE}"
    elif algorithm == "DSPARK":
        options["--speculative-dspark-block-size"] = length
    elif algorithm == "NGRAM":
        options["--speculative-ngram-max-bfs-breadth"] = 1
        options["--speculative-ngram-max-trie-depth"] = int(method.options["prompt_lookup_max"]) + length
    if draft is None:
        return options
    quantization = None
    if draft.quantize != wanted.target.quantize:
        quantization = "fp8" if draft.quantize else _UNQUANTIZED
    return {
        **options,
        "--speculative-draft-model-path": draft.place,
        "--speculative-draft-model-revision": draft.revision,
        "--speculative-draft-model-quantization": quantization,
    }


TOPK = "--speculative-eagle-topk"


@dataclass(frozen=True, slots=True)
class DraftTree:
    """The shape of a tree."""

    topk: int
    """The tokens that each step proposes after one of the step before."""
    verified: int
    """The tokens that the target verifies in a round; one of them is the token before the draft."""

    def num_nodes(self, longest: int) -> int:
        """Returns the proposed tokens that a round has room for (`spec_decode_alloc_len_per_request`)."""
        return max(self.topk * longest, self.verified) - 1

    def check(self, choose: Chooser, steps: int) -> None:
        """Raises RecipeError for more tokens than the steps propose, with which SGLang does not start.

        The first step proposes `topk` tokens, each later one `topk` after each of `topk` tokens
        (`organize_draft_results` in srt/speculative/eagle_utils.py).
        """
        most = 1 + self.topk + (steps - 1) * self.topk**2
        if self.verified > most:
            shape = f"{TOPK} {self.topk} and speculation.num_draft_tokens: {steps}"
            problem = f"{TOKENS} {self.verified} is more than the {most} that {shape} make"
            repair = f"at most {most} there, or a larger speculation.num_draft_tokens"
            raise choose.error("engine.extra_args", problem, repair)


def tree(topk: str | None, verified: str | None) -> DraftTree | None:
    """Returns the tree of two flags' values; None if they are no tree's."""
    if not (topk and verified and is_whole(topk) and is_whole(verified)):
        return None
    return DraftTree(int(topk), int(verified)) if int(topk) > 1 and int(verified) > 1 else None


def tree_of(recipe: Recipe, syntax: Syntax) -> DraftTree | None:
    """Returns the tree that a recipe passes on; None if its drafts are chains."""
    if METHODS.get(recipe.speculation.method.kind) not in STEPWISE:
        return None
    found = {item.name: item.value for item in _flags(recipe, syntax)}
    return tree(found.get(TOPK), found.get(TOKENS))


def misplaced(recipe: Recipe, syntax: Syntax) -> Iterator[Finding]:
    """Finds flags of a tree where drafts are chains, which are as long as `speculation` says."""
    if tree_of(recipe, syntax) is None:
        for item in _flags(recipe, syntax):
            problem = f"{item.name} is not passed on: speculation says it, unless both flags make a tree"
            yield Finding("engine.extra_args", problem, "remove it")


def _flags(recipe: Recipe, syntax: Syntax) -> Iterator[Option]:
    for item in options(recipe.engine.extra_args, syntax):
        if isinstance(item, Option) and item.name in (TOPK, TOKENS):
            yield item


SWITCHES = names_in("""
    --abort-on-priority-when-disabled --allow-auto-truncate --checkpoint-engine-wait-weights-before-ready
    --constrained-json-disable-any-whitespace --dcp-replicate-q-proj --debug-cuda-graph
    --delete-ckpt-after-loading --disable-aiter-allreduce-fusion-in-decode
    --disable-aiter-allreduce-fusion-in-prefill --disable-attn-tp-gather --disable-chunked-prefix-cache
    --disable-cuda-graph --disable-cuda-graph-padding --disable-custom-all-reduce --disable-decode-cuda-graph
    --disable-fast-image-processor --disable-flashinfer-autotune
    --disable-flashinfer-cutlass-moe-fp4-allgather --disable-hybrid-swa-memory --disable-outlines-disk-cache
    --disable-overlap-schedule --disable-prefill-cuda-graph --disable-priority-preemption
    --disable-radix-cache --disable-shared-experts-fusion --disable-tokenizer-batch-decode
    --disaggregation-decode-enable-offload-kvcache --disaggregation-decode-enable-radix-cache
    --disaggregation-enable-kv-checksum --dllm-fdfo --enable-adaptive-dispatch-to-encoder
    --enable-aiter-allreduce-fusion --enable-amd-monokernel --enable-attn-tp-input-scattered
    --enable-broadcast-mm-inputs-process --enable-cache-report --enable-cp-decode-attn-tp
    --enable-cudagraph-gc --enable-custom-logit-processor --enable-decoder-swa-bounded-replay
    --enable-deepseek-v4-fp4-indexer --enable-dense-mlp-attn-tp --enable-deterministic-inference
    --enable-dp-attention --enable-dp-attention-local-control-broadcast --enable-dp-lm-head
    --enable-draft-weights-cpu-backup --enable-dsa-cache-layer-split --enable-dsa-fused-indexer
    --enable-dynamic-batch-tokenizer --enable-dynamic-chunking --enable-elastic-expert-backup
    --enable-encoder-swa-bounded-replay --enable-eplb --enable-flashinfer-allreduce-fusion --enable-flexkv
    --enable-forward-pass-metrics --enable-fp32-lm-head --enable-fused-moe-sum-all-reduce
    --enable-fused-qk-norm-rope --enable-hicache --enable-hierarchical-cache --enable-hisparse
    --enable-http-worker-reuseport --enable-http2 --enable-int8-mamba-checkpoint --enable-kv-cache-sharding
    --enable-layernorm-sp --enable-layerwise-nvtx-marker --enable-lean-attention --enable-linear-replayssm
    --enable-linear-replayssm-spec --enable-linker-mla-dedup --enable-lmcache --enable-lora
    --enable-lora-overlap-loading --enable-mamba-cache-stochastic-rounding --enable-megamoe-for-layernorm-sp
    --enable-memory-saver --enable-metrics --enable-metrics-for-all-schedulers --enable-mfu-metrics
    --enable-mis --enable-mixed-chunk --enable-mm-global-cache --enable-mscclpp --enable-multi-layer-eagle
    --enable-multimodal --enable-nccl-nvls --enable-nvidia-megakernel --enable-p2p-check
    --enable-page-major-kv-layout --enable-paged-experts --enable-pd-role-switch --enable-pdmux
    --enable-precise-embedding-interpolation --enable-prefill-cp --enable-prefill-delayer
    --enable-prefix-mm-cache --enable-priority-scheduling --enable-profile-cuda-graph
    --enable-quant-communications --enable-request-time-stats-logging --enable-response-store
    --enable-return-aux-hidden-states --enable-return-hidden-states --enable-return-indexer-topk
    --enable-return-routed-experts --enable-scattered-sconv --enable-session-radix-cache
    --enable-shared-experts-attn-tp --enable-single-batch-overlap --enable-ssl-refresh
    --enable-streaming-session --enable-strict-thinking --enable-symm-mem --enable-tf32-matmul
    --enable-tokenizer-batch-encode --enable-torch-compile --enable-torch-compile-debug-mode
    --enable-torch-symm-mem --enable-tp-lm-head-all-to-all --enable-trace --enable-two-batch-overlap
    --enable-unified-cache-external-linker --enable-unified-memory --enable-w4a4-mxfp4-megamoe
    --enable-waterfill --enable-watermark --enable-weights-cpu-backup --encoder-only
    --enforce-disable-flashinfer-allreduce-fusion --enforce-shared-experts-fusion --experts-shared-outer-loras
    --export-metrics-to-file --flashinfer-mla-disable-ragged --grpc-mode --incremental-streaming-output
    --is-embedding --language-model-only --language-only --log-requests --lora-strict-loading
    --lora-use-virtual-experts --mlx-enable-sampling --mm-enable-dp-encoder --no-dcp-replicate-q-proj
    --no-dllm-fdfo --no-enable-decoder-swa-bounded-replay --no-enable-dsa-fused-indexer
    --no-enable-fused-qk-norm-rope --no-enable-tf32-matmul --no-enable-tp-lm-head-all-to-all
    --no-experts-shared-outer-loras --no-lora-strict-loading --no-mm-enable-dp-encoder
    --no-ple-offload-embedding --no-speculative-enable-w4a4-mxfp4-megamoe --ple-offload-embedding
    --pre-warm-nccl --prefill-only-disable-kv-cache --quantize-and-serve
    --remote-instance-weight-loader-start-seed-via-transfer-engine --return-input-ids --return-output-ids
    --schedule-low-priority-values-first --show-time-cost --skip-server-warmup --skip-tokenizer-init
    --sleep-on-idle --smg-grpc-mode --speculative-adaptive
    --speculative-dspark-align-verify-tokens-to-graph-tier --speculative-enable-w4a4-mxfp4-megamoe
    --speculative-use-block-verification --speculative-use-rejection-sampling
    --stream-response-default-include-usage --strip-thinking-cache --triton-attention-reduce-in-fp32
    --trust-mm-content-hashes --trust-remote-code --trust-request-chat-template --use-ray
    --weight-loader-disable-mmap --weight-loader-drop-cache-after-load --weight-loader-prefetch-checkpoints
""")
"""The flags without a value."""

LISTS = names_in("""
    --allowed-media-domains --bucket-e2e-request-latency --bucket-inter-token-latency
    --bucket-time-to-first-token --cuda-graph-bs --cuda-graph-bs-decode --cuda-graph-bs-prefill
    --custom-weight-loader --debug-tensor-dump-layers --encoder-register-urls --encoder-urls
    --flashinfer-autotune-skip-ops --gc-threshold --generation-tokens-buckets --log-requests-target
    --lora-paths --lora-target-modules --model-checksum --numa-node --prefill-delayer-forward-passes-buckets
    --prefill-delayer-wait-seconds-buckets --prompt-tokens-buckets --return-aux-hidden-state-layer-ids
    --tokenizer-metrics-allowed-custom-labels --uvicorn-access-log-exclude-prefixes
""")
"""The flags with as many values as words follow."""


_KEYS = {
    "--model-path": FlagKey("target.model"),
    "--revision": FlagKey("target.revision"),
    "--dtype": FlagKey("target.dtype", dtype),
    "--quantization": FlagKey("target.quantization.weights", weights),
    "--kv-cache-dtype": FlagKey("target.quantization.kv_cache", kv_cache),
    "--tp-size": FlagKey("target.parallel.tensor", whole),
    "--pp-size": FlagKey("target.parallel.pipeline", whole),
    "--context-length": FlagKey("engine.max_seq_len", tokens),
    "--max-running-requests": FlagKey("engine.max_batch_size", whole),
    "--chunked-prefill-size": FlagKey("engine.max_num_tokens", whole),
    "--served-model-name": FlagKey("serving.model_name"),
}
_ONE_HOST = "its ranks are on one host"
_SET_ELSEWHERE = {
    "--host": OF_DEPLOY,
    "--port": OF_DEPLOY,
    "--api-key": KEYS_FILE,
    "--admin-api-key": KEYS_FILE,
    "--load-format": PLACES,
    "--download-dir": PLACES,
    "--nnodes": _ONE_HOST,
    "--node-rank": _ONE_HOST,
    "--dist-init-addr": _ONE_HOST,
    "--enable-metrics": "it is always on",
}
_INEXACT = "it makes answers differ from the target's own"
_LOST = {
    "--trust-remote-code": FOREIGN_CODE,
    "--speculative-accept-threshold-single": _INEXACT,
    "--speculative-accept-threshold-acc": _INEXACT,
    "--speculative-ngram-max-trie-depth": "speculation.method says it",
}
_METHODS = {"NEXTN": "mtp", **{theirs: ours for ours, theirs in METHODS.items()}}
_ALGORITHM, _MODEL = "--speculative-algorithm", "--speculative-draft-model-path"
_CHUNK = "--chunked-prefill-size"
_STEPS, _BREADTH = "--speculative-num-steps", "--speculative-ngram-max-bfs-breadth"
_OTHERS = {
    "--speculative-draft-model-revision": FlagKey("draft.revision"),
    "--speculative-draft-model-quantization": FlagKey("draft.quantization.weights", weights),
    "--speculative-draft-kv-cache-dtype": FlagKey("draft.quantization.kv_cache", kv_cache),
}
_SYNTAX = Syntax(
    aliases={
        "--model": "--model-path",
        "--tensor-parallel-size": "--tp-size",
        "--tp": "--tp-size",
        "--pipeline-parallel-size": "--pp-size",
        "--pp": "--pp-size",
        "--data-parallel-size": "--dp-size",
        "--dp": "--dp-size",
        "--expert-parallel-size": "--ep-size",
        "--ep": "--ep-size",
        "--speculative-draft-model": _MODEL,
        "--speculative-draft": _MODEL,
        "--speculative-dflash-block-size": TOKENS,
        "--speculative-dspark-block-size": _STEPS,
    },
    switches=SWITCHES,
    lists=LISTS,
)
_TABLE = FlagTable(_SYNTAX, _KEYS, _SET_ELSEWHERE, _LOST, of_drafts=(_ALGORITHM, _MODEL, _STEPS, *_OTHERS))
_RIVALS = names_in(
    "--context-bucket --dist-timeout --kv-canary --load-balance-method --max-ep-size --pp-async-batch-depth "
    "--quantization-param-path"
)
FLAGS = _TABLE.with_beginnings((*_RIVALS, TOPK, TOKENS))
"""The flags of release 0.5.23."""


def read(words: Sequence[str], reading: FlagReading) -> None:
    """Reads the words after `sglang.launch_server`, and its flags for drafts."""
    drafts, own = draft_reading(reading), dict[str, Option]()
    flags = FLAGS.of_parser(reading.own_flags)
    for item in options(with_config(words, flags.syntax.switches, reading), flags.syntax):
        if isinstance(item, str):
            reading.take_model(item)
        elif item.name in (_ALGORITHM, _MODEL, _STEPS, TOPK, TOKENS):
            if item.name in own:
                reading.lose(own[item.name].written, f"{item.written} comes later and overrides it")
            own[item.name] = item
        elif item.name == _CHUNK and item.value == "-1":
            reading.set("engine.enable_chunked_context", False, item.written)
        elif item.name in (_BREADTH, ADAPTIVE, ADAPTIVE_FILE):
            reading.take(item, flags)
            reading.of_drafts.append(item.written)
        elif key := _OTHERS.get(item.name):
            drafts.convert(item, key)
        else:
            reading.take(item, flags)
    _speculate(own, drafts, reading)


def _speculate(own: dict[str, Option], drafts: FlagReading, reading: FlagReading) -> None:
    """Takes the flags that set the source, the length and the shape of drafts.

    A chain of K tokens is K steps of which each proposes one, verified with the token before them: K + 1. The
    two flags that make a tree of it are passed on.
    """
    if option := own.get(_ALGORITHM):
        algorithm = (option.value or "").upper()
        if algorithm == "EAGLE" and _MODEL not in own:
            algorithm = "NEXTN"  # Without a draft, EAGLE runs the target's own layers for it.
        drafts.set(METHOD, _METHODS.get(algorithm, algorithm.lower()), option.written)
    if option := own.get(_MODEL):
        drafts.set(MODEL, option.value or "", option.written)
    branches = _branches(own, drafts)
    lengths = {name: option for name, option in own.items() if name in (_STEPS, TOKENS)}
    chosen = _STEPS if _STEPS in lengths else TOKENS
    for name_, option in lengths.items():
        try:
            length = whole(option.value or "") - (name_ == TOKENS)
        except ValueError as error:
            drafts.lose(option.written, str(error))
            continue
        if name_ == chosen and length > 0:
            drafts.set(LENGTH, length, option.written)
        else:
            drafts.lose(option.written, f"a draft is a chain, as long as {chosen} says")
    carry(drafts, reading)
    for option in branches:
        if METHOD in reading.values:
            reading.take(option, FLAGS)
            reading.of_drafts.append(option.written)
        else:
            reading.miss(option.written, "the recipe has not the method that it shapes")


def _branches(own: dict[str, Option], drafts: FlagReading) -> list[Option]:
    """Takes the flags that make a tree of drafts out of `own`; notes a tree that SGLang could not make."""
    topk, tokens = own.pop(TOPK, None), own.get(TOKENS)
    if topk is None:
        return []
    if METHODS.get(drafts.values.get(METHOD, "")) not in STEPWISE or topk.value == "1":
        drafts.lose(topk.written, f"drafts are chains, and a chain is as long as {_STEPS}")
    elif tokens and _STEPS in own and tree(topk.value, tokens.value):
        return [topk, own.pop(TOKENS)]
    else:
        drafts.miss(topk.written, f"a tree has three whole numbers: {_STEPS}, {TOPK} and {TOKENS}")
    return []


def _num_tokens(gpu: GpuProduct | None) -> int:
    """Returns what 0.5.23 has (`arg_groups/memory_hook.py`)."""
    if gpu is None or gpu.memory_gib < 60:
        return 4096
    return 8192 if gpu.memory_gib < 160 else 16384


LONGER = LongerTexts(
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
    frozenset(("1", "true", "yes", "y")),
    "--json-model-override-args",
)
"""Its values are those of `EnvBool` in sglang/srt/environ.py."""

TOOL = MigrationTool(
    "SGLang",
    "sglang",
    (("-m", "sglang.launch_server"), ("sglang", "serve")),
    read,
    images=("lmsysorg/sglang",),
    serves="as many requests at once as its memory holds",
    num_tokens=_num_tokens,
    longer=LONGER,
    own_parser=OwnParser(
        "sglang", "argparse:ArgumentParser", "sglang.srt.server_args:ServerArgs.add_cli_args"
    ),
)
