"""The `tensorrt_llm` backend's engines: `trtllm-build` as an argv, and its run."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from trtspec.engine.options import BuildOptions, Value, is_on
from trtspec.errors import StepError

COMMAND = "trtllm-build"
_WORDS = {True: "enable", False: "disable"}

# What an expert adds to trtllm-build's own defaults, and what speculation needs said aloud.
DEFAULTS: dict[str, Value] = {
    "max_beam_width": 1,
    "kv_cache_type": "paged",
    "remove_input_padding": "enable",
    "context_fmha": "enable",
    "use_paged_context_fmha": "enable",
    "gemm_plugin": "auto",
}

# Options without a value; all others that YAML may call true or false are enable or disable.
FLAGS = frozenset(
    {
        "enable_debug_output",
        "fast_build",
        "gather_all_token_logits",
        "gather_context_logits",
        "gather_generation_logits",
        "monitor_memory",
        "strip_plan",
        "weight_sparsity",
        "weight_streaming",
    }
)


def build_argv(checkpoint: str, output: str, options: BuildOptions) -> tuple[str, ...]:
    """The exact invocation; parallelism comes from the checkpoint's `mapping`, never from a flag."""
    values: dict[str, Value] = {
        "checkpoint_dir": checkpoint,
        "output_dir": output,
        "max_batch_size": options.max_batch_size,
        "max_input_len": options.max_input_len,
        "max_seq_len": options.max_seq_len,
        "max_num_tokens": options.max_num_tokens,
        **DEFAULTS,
        **options.extra,
    }
    if options.max_draft_len:
        values |= {
            "speculative_decoding_mode": "draft_tokens_external",
            "max_draft_len": options.max_draft_len,
        }
    argv = [COMMAND]
    for name, value in values.items():
        if name in FLAGS:
            argv += [f"--{name}"] if is_on(value) else []
        else:
            argv += [f"--{name}", _WORDS[value] if isinstance(value, bool) else str(value)]
    return tuple(argv)


def build(executable: str, argv: tuple[str, ...], log: Path) -> None:
    """Runs the command with its output in `log`; raises StepError. Ctrl-C ends its worker processes too."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        # trtllm-build leaves its timing cache, model.cache, in the working directory.
        process = subprocess.Popen(  # noqa: S603
            [executable, *argv[1:]],
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if status:
        raise StepError(argv[0], f"failed with status {status}: {_last_line(log)}", log=log)


def _last_line(log: Path) -> str:
    """The last thing said, which with a Python program is the exception."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
