"""What vLLM's parser and configurations make of arguments of its server; run by a Python that has vLLM.

Reads a JSON list of launches on stdin, each `{"arguments": [...], "whole": true}`, and writes what came of
each as the last line of stdout. Without `whole` the arguments are parsed, and the platform is not asked: that
of a CPU has no FP8.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

# A GPU has vLLM's second model runner. A CPU has no Triton, and so the first, which refuses DSpark.
VllmConfig._validate_v1_model_runner = lambda self: None


def asked(arguments: list[str], whole: bool) -> dict[str, Any]:
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    # As `vllm serve` does before it validates.
    parsed.model = parsed.model_tag or parsed.model
    validate_parsed_serve_args(parsed)
    engine = AsyncEngineArgs.from_cli_args(parsed)
    if not whole:
        fields = ("quantization", "kv_cache_dtype", "tensor_parallel_size", "enable_chunked_prefill")
        return {name: getattr(engine, name) for name in ("model", *fields)}
    config = engine.create_engine_config()
    speculation, most = config.speculative_config, config.scheduler_config.max_num_seqs
    return {
        "served_model_name": config.model_config.served_model_name,
        "names": parsed.served_model_name,
        "dtype": str(config.model_config.dtype),
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "kv_cache_memory_bytes": config.cache_config.kv_cache_memory_bytes,
        "method": speculation.method,
        "num_speculative_tokens": speculation.num_speculative_tokens,
        "model": speculation.model,
        "prompt_lookup": [speculation.prompt_lookup_min, speculation.prompt_lookup_max],
        "suffix_decoding": {
            name: getattr(speculation, f"suffix_decoding_{name}")
            for name in ("max_tree_depth", "max_cached_requests", "max_spec_factor", "min_token_prob")
        },
        # The K of 1, 2, … requests, as the scheduler looks them up.
        "by_requests": build_dynamic_sd_schedule_lookup(table, most, speculation.num_speculative_tokens)[1:]
        if (table := speculation.num_speculative_tokens_per_batch_size)
        else [],
        "use_heterogeneous_vocab": speculation.use_heterogeneous_vocab,
        "parallel_drafting": speculation.parallel_drafting,
        "draft_architecture": (speculation.draft_model_config or config.model_config).architecture,
    }


def main() -> None:
    found = []
    for launch in json.load(sys.stdin):
        try:
            found.append(asked(launch["arguments"], launch["whole"]))
        except (SystemExit, Exception) as error:
            found.append({"error": str(error)})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
