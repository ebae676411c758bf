from __future__ import annotations

import signal
import stat
import threading
import time
from pathlib import Path

import pytest

from trtspec.engine.options import BuildOptions
from trtspec.engine.trtllm import build, build_argv
from trtspec.errors import StepError

OPTIONS = BuildOptions(16, 4095, 4096, 8192)


def values(argv: tuple[str, ...]) -> dict[str, str]:
    return {
        name: "" if following.startswith("--") else following
        for name, following in zip(argv, (*argv[1:], "--"), strict=True)
        if name.startswith("--")
    }


def test_the_draft_has_no_speculative_mode() -> None:
    argv = build_argv("in", "out", OPTIONS)
    assert argv[:5] == ("trtllm-build", "--checkpoint_dir", "in", "--output_dir", "out")
    assert not {"--speculative_decoding_mode", "--max_draft_len"} & set(argv)


def test_the_target_has_what_the_draft_has_and_its_mode() -> None:
    target = BuildOptions(16, 4095, 4096, 8192, max_draft_len=8)
    added = set(build_argv("in", "out", target)) - set(build_argv("in", "out", OPTIONS))
    assert added == {"--speculative_decoding_mode", "draft_tokens_external", "--max_draft_len", "8"}


def test_what_speculation_stands_on_is_said_aloud() -> None:
    options = values(build_argv("in", "out", OPTIONS))
    assert options["--use_paged_context_fmha"] == "enable"
    assert options["--remove_input_padding"] == "enable"
    assert options["--kv_cache_type"] == "paged"
    assert options["--max_beam_width"] == "1"


def test_options_of_the_recipe() -> None:
    extra = {
        "gemm_plugin": "disable",
        "multiple_profiles": True,
        "use_fused_mlp": False,
        "gather_generation_logits": True,
        "fast_build": False,
        "workers": 2,
    }
    options = values(build_argv("in", "out", BuildOptions(1, 2, 3, 4, extra=extra)))
    assert options["--gemm_plugin"] == "disable"  # instead of trtspec's own choice
    assert (options["--multiple_profiles"], options["--use_fused_mlp"]) == ("enable", "disable")
    assert (options["--gather_generation_logits"], options["--workers"]) == ("", "2")
    assert "--fast_build" not in options


def command(tmp_path: Path, script: str) -> str:
    path = tmp_path / "trtllm-build"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


def test_a_build_that_fails_shows_its_last_line(tmp_path: Path) -> None:
    executable = command(tmp_path, 'echo "working on $2"; echo "RuntimeError: no luck" >&2; exit 3')
    log = tmp_path / "logs/build.log"
    with pytest.raises(StepError, match="failed with status 3: RuntimeError: no luck") as caught:
        build(executable, ("trtllm-build", "--checkpoint_dir", "in"), log)
    assert caught.value.log == log
    assert log.read_text() == "working on in\nRuntimeError: no luck\n"


def test_ctrl_c_ends_the_workers_of_a_build_too(tmp_path: Path) -> None:
    """A grandchild that would write a file later must be gone."""
    executable = command(tmp_path, "(sleep 1; touch late) & touch started; wait")
    started, late = tmp_path / "logs/started", tmp_path / "logs/late"

    def interrupt() -> None:
        deadline = time.monotonic() + 10
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        build(executable, ("trtllm-build",), tmp_path / "logs/build.log")
    time.sleep(1.2)  # longer than the worker would have needed
    assert started.exists()
    assert not late.exists()
