"""A stand-in for `trtllm-build` of TensorRT-LLM 1.2: refuses unknown options, writes an engine directory.

The options and the arithmetic are those of `commands/build.py`; the "plan" is a file of random bytes, for a
real one differs between two builds as well.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

SWITCH = {"choices": ("enable", "disable")}
PARSER = argparse.ArgumentParser("trtllm-build", allow_abbrev=False)
for name in ("checkpoint_dir", "output_dir", "gemm_plugin", "output_timing_cache"):
    PARSER.add_argument(f"--{name}")
for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_beam_width", "max_num_tokens", "workers"):
    PARSER.add_argument(f"--{name}", type=int)
for name in ("remove_input_padding", "context_fmha", "use_paged_context_fmha", "multiple_profiles"):
    PARSER.add_argument(f"--{name}", **SWITCH)
PARSER.add_argument("--kv_cache_type", choices=("continuous", "paged", "disabled"))
PARSER.add_argument("--max_draft_len", type=int, default=0)
PARSER.add_argument("--speculative_decoding_mode", choices=("draft_tokens_external", "medusa", "eagle"))
PARSER.add_argument("--gather_generation_logits", action="store_true")


def main() -> None:
    options = PARSER.parse_args()
    Path("model.cache").touch()
    output = Path(options.output_dir)
    output.mkdir(parents=True)
    pretrained = json.loads((Path(options.checkpoint_dir) / "config.json").read_text())
    assert (Path(options.checkpoint_dir) / "rank0.safetensors").is_file()
    has_paged_context = options.use_paged_context_fmha == "enable" and "FAKE_WITHOUT_PAGED" not in os.environ
    build = {
        "max_batch_size": options.max_batch_size,
        "max_input_len": options.max_input_len,
        "max_seq_len": options.max_seq_len + options.max_draft_len,
        "max_num_tokens": options.max_num_tokens,
        "max_draft_len": options.max_draft_len,
        "speculative_decoding_mode": 2 if options.speculative_decoding_mode else 1,
        "gather_generation_logits": options.gather_generation_logits,
        "plugin_config": {"use_paged_context_fmha": has_paged_context},
    }
    config = {"version": "1.2.1", "pretrained_config": pretrained, "build_config": build}
    (output / "config.json").write_text(json.dumps(config))
    (output / "rank0.engine").write_bytes(os.urandom(1000))


if __name__ == "__main__":
    main()
