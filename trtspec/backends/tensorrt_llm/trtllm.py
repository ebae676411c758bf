"""Builds engines of the `tensorrt_llm` backend: the command line of `trtllm-build`, and its run."""

from __future__ import annotations

from pathlib import Path

from trtspec.backends.tensorrt_llm.diagnosis import diagnose
from trtspec.backends.tensorrt_llm.timing_cache import TimingCache
from trtspec.base.progress import Advance
from trtspec.base.tail import Tail
from trtspec.pipeline.engine.directory import EXTERNAL
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.machine.installed import COMMAND
from trtspec.pipeline.run.launcher import Launcher
from trtspec.recipe.build_options import Value, to_argv

_POLL_S = 0.2


def build_argv(checkpoint: str, output: str, options: BuildOptions, mode: str = EXTERNAL) -> tuple[str, ...]:
    """Returns the exact command line; parallelism comes from the checkpoint's `mapping`, never from a flag.

    `mode` is what an engine with a `max_draft_len` does with drafts, as `trtllm-build` calls it.
    """
    values: dict[str, Value] = {
        "checkpoint_dir": checkpoint,
        "output_dir": output,
        "max_batch_size": options.max_batch_size,
        "max_input_len": options.max_input_len,
        "max_seq_len": options.max_seq_len,
        "max_num_tokens": options.max_num_tokens,
    }
    if options.max_draft_len:
        values |= {"speculative_decoding_mode": mode, "max_draft_len": options.max_draft_len}
    values.update(options.extra)
    return (COMMAND, *(word for item in values.items() for word in to_argv(*item)))


def build(argv: tuple[str, ...], launcher: Launcher, cache: TimingCache, log: Path, advance: Advance) -> None:
    """Runs the command with its output in `log`; raises StepError with the diagnosis if it fails.

    `advance` is called with no bytes and the builder's last line. If it raises, or on Ctrl-C, the builder and
    its worker processes are ended.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream, cache.options(log.parent) as timing:
        process = launcher.start((*argv, *timing), stream, log.parent)
        tail, note = Tail(log), ""
        try:
            while (status := process.wait(_POLL_S)) is None:
                note = _note(tail.lines()) or note
                advance(0, note)
        finally:
            process.kill()
        if status:
            raise diagnose(argv[0], status, log, launcher.causes)


def _note(lines: list[str]) -> str:
    """The start of the last line, without its prefix: `[11/21/2026-07:30:00] [TRT-LLM] [I]`."""
    return lines[-1].rpartition("] ")[2].strip()[:_WIDTH] if lines else ""


_WIDTH = 60
