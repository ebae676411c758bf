"""What SGLang's `ServerArgs` makes of arguments of its server; run by a Python that has SGLang.

Reads a JSON list of lists of arguments on stdin, and writes what came of each as the last line of stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from sglang.srt.server_args import prepare_server_args
from sglang.srt.speculative.adaptive_spec_params import (
    adaptive_unsupported_reason,
    resolve_candidate_steps_from_config,
)

FIELDS = (
    "model_path", "served_model_name", "dtype", "quantization", "kv_cache_dtype", "tp_size", "context_length",
    "max_running_requests", "chunked_prefill_size", "enable_metrics", "speculative_algorithm",
    "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
    "speculative_draft_model_path", "speculative_draft_model_quantization",
    "speculative_dspark_block_size", "speculative_ngram_max_bfs_breadth", "speculative_ngram_max_trie_depth",
)  # fmt: skip


def asked(arguments: list[str]) -> dict[str, Any]:
    found = prepare_server_args(arguments)
    told = {name: getattr(found, name) for name in FIELDS}
    if not found.speculative_adaptive:
        return told
    # What it begins with, once its parser has the options of each number of requests.
    steps = resolve_candidate_steps_from_config(found.speculative_adaptive_config)
    return {**told, "adaptive_steps": steps, "adaptive_flaw": adaptive_unsupported_reason(found)}


def main() -> None:
    found = []
    for arguments in json.load(sys.stdin):
        try:
            found.append(asked(arguments))
        except (SystemExit, Exception) as error:
            found.append({"error": str(error)})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
