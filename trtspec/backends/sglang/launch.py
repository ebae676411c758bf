"""SGLang's OpenAI server (`sglang.launch_server`): its arguments, as `ServerArgs` of 0.5.23 has them."""

from __future__ import annotations

from typing import Any

from trtspec.backends.served.inputs import LaunchInputs
from trtspec.recipe.migration.command import as_words

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
