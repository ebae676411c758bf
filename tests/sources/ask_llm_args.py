"""What TensorRT-LLM's `trtllm-serve` reads of command lines, and its `TorchLlmArgs` of their files.

The argument is a checkout of TensorRT-LLM. Reads a JSON list of lists of arguments on stdin, and writes what
came of each as the last line of stdout.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.sources import nvidia

FIELDS = (
    "model", "backend", "revision", "dtype", "tensor_parallel_size", "pipeline_parallel_size",
    "max_batch_size", "max_seq_len", "max_num_tokens", "enable_chunked_prefill", "return_perf_metrics",
    "disable_overlap_scheduler",
)  # fmt: skip


def server() -> tuple[Any, Any]:
    """Returns the modules of the command and of its options."""
    options = import_module("tensorrt_llm.llmapi.llm_args")
    vars(import_module("tensorrt_llm.llmapi")).update(vars(options))
    sys.modules["tensorrt_llm.llmapi.llm_utils"] = options
    return import_module("tensorrt_llm.commands.serve"), options


def main() -> None:
    nvidia.install(Path(sys.argv[1]), LLM=object, MultimodalEncoder=object)
    serve, options = server()
    found: list[dict[str, Any]] = []

    def launch(host: str, port: int, given: dict[str, Any], *others: object) -> None:
        given.pop("build_config")  # As `launch_server` does for this backend.
        read = options.TorchLlmArgs.from_kwargs(**given)
        speculation = read.speculative_config
        found.append(
            {
                **{name: getattr(read, name) for name in FIELDS},
                "kv_cache_dtype": read.kv_cache_config.dtype,
                "speculation": {"class": type(speculation).__name__, **speculation.model_dump(mode="json")},
            }
        )

    serve.launch_server = launch
    for arguments in json.load(sys.stdin):
        try:
            serve.main(arguments, standalone_mode=False)
        except Exception as error:
            found.append({"error": f"{type(error).__name__}: {error}"})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
