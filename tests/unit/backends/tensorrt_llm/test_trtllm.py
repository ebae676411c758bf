from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.conftest import wait_until
from tests.fakes.trtllm_build import parser
from trtspec.backends.tensorrt_llm.backend import defaults
from trtspec.backends.tensorrt_llm.engine_step import TimingCache, build_argv, run_builder
from trtspec.base.errors import StepError
from trtspec.pipeline.engine.engine_options import BuildOptions, EngineKind
from trtspec.pipeline.run.launcher import LocalLauncher
from trtspec.recipe.build_options import FIXED, OPTIONS, Flag, Phrase, Value, Whole, Words, option_problem

OPTIONS_ = BuildOptions(16, 4095, 4096, 8192)
CACHE = TimingCache("1.2.1", "h200", "64x80-bfloat16-tp1")


def values(argv: tuple[str, ...]) -> dict[str, str]:
    return {
        name: "" if following.startswith("--") else following
        for name, following in zip(argv, (*argv[1:], "--"), strict=True)
        if name.startswith("--")
    }


def test_the_draft_has_no_speculative_mode() -> None:
    argv = build_argv("in", "out", OPTIONS_)
    assert argv[:5] == ("trtllm-build", "--checkpoint_dir", "in", "--output_dir", "out")
    assert not {"--speculative_decoding_mode", "--max_draft_len"} & set(argv)


def test_the_target_has_what_the_draft_has_and_its_mode() -> None:
    target = BuildOptions(16, 4095, 4096, 8192, max_draft_len=8)
    added = set(build_argv("in", "out", target)) - set(build_argv("in", "out", OPTIONS_))
    assert added == {"--speculative_decoding_mode", "draft_tokens_external", "--max_draft_len", "8"}


def test_trtllm_build_is_told_every_option_that_speculation_needs() -> None:
    kind = EngineKind("LlamaForCausalLM", fp8_weights=False, fp8_kv_cache=False, sm=90)
    extra = {name: value for name, value, _ in defaults(kind, {})}
    options = values(build_argv("in", "out", BuildOptions(1, 2, 3, 4, extra=extra)))
    assert options["--use_paged_context_fmha"] == "enable"
    assert options["--remove_input_padding"] == "enable"
    assert options["--kv_cache_type"] == "paged"
    assert options["--logits_dtype"] == "float32"
    assert options["--max_beam_width"] == "1"


def test_options_of_the_recipe() -> None:
    extra: dict[str, int | float | str] = {
        "gemm_plugin": "disable",
        "nccl_plugin": False,
        "multiple_profiles": True,
        "use_fused_mlp": False,
        "gather_generation_logits": True,
        "fast_build": False,
        "workers": 2,
    }
    argv = build_argv(
        "in", "out", BuildOptions(1, 2, 3, 4, extra={**extra, "lora_target_modules": "attn_q attn_v"})
    )
    options = values(argv)
    assert (options["--gemm_plugin"], options["--nccl_plugin"]) == ("disable", "disable")
    assert (options["--multiple_profiles"], options["--use_fused_mlp"]) == ("enable", "disable")
    assert (options["--gather_generation_logits"], options["--workers"]) == ("", "2")
    assert "--fast_build" not in options
    assert argv[-3:] == ("--lora_target_modules", "attn_q", "attn_v")


@pytest.mark.parametrize("name", [*OPTIONS, *FIXED])
@pytest.mark.parametrize("release", ["1.0.0", "1.1.0", "1.2.0", "1.2.1"])
def test_every_option_of_the_recipe_is_one_of_every_release(name: str, release: str) -> None:
    """The stand-in's parser has the options and choices of NVIDIA's `parse_arguments`."""
    kind = OPTIONS.get(name)
    examples: list[bool | int | float | str] = [FIXED[name][0]] if name in FIXED else []
    if isinstance(kind, Words):
        examples = [int(word) if word.isdecimal() else word for word in kind.words]
    elif isinstance(kind, Whole):
        examples = [kind.least]
    elif isinstance(kind, Flag):
        examples = [True]
    elif isinstance(kind, Phrase):
        examples = [kind.words[0] if kind.words else "some text"]
    assert examples
    for value in examples:
        argv = build_argv("in", "out", BuildOptions(1, 2, 3, 4, extra={name: value}))
        parsed = vars(parser(release).parse_args(argv[1:]))[name]  # or SystemExit
        assert parsed == value or parsed == [value]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gather_context_logits", False),
        ("gather_all_token_logits", "disable"),
        ("strip_plan", False),
        ("paged_kv_cache", True),
        ("streamingllm", False),
    ],
)
def test_options_that_equal_the_fixed_behaviour_of_trtllm_build_are_not_passed(
    name: str, value: Value
) -> None:
    assert option_problem(name, value) is None
    assert build_argv("in", "out", replace(OPTIONS_, extra={name: value})) == build_argv(
        "in", "out", OPTIONS_
    )


def command(tmp_path: Path, script: str) -> LocalLauncher:
    path = tmp_path / "trtllm-build"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return LocalLauncher(str(path), ("GPU-1", "GPU-2"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))


def silent(amount: int, note: str = "", /) -> None:
    return


def test_a_build_that_fails_shows_its_last_lines(tmp_path: Path) -> None:
    launcher = command(tmp_path, 'echo "working on $2"; echo "RuntimeError: no luck" >&2; exit 3')
    log = tmp_path / "logs/build.log"
    with pytest.raises(StepError, match="failed with status 3: RuntimeError: no luck") as caught:
        run_builder(("trtllm-build", "--checkpoint_dir", "in"), launcher, CACHE, log, silent)
    assert caught.value.log == log
    assert caught.value.lines == ("working on in", "RuntimeError: no luck")
    assert log.read_text() == "working on in\nRuntimeError: no luck\n"


def test_the_builder_sees_only_its_gpus_and_no_shell_reads_its_arguments(tmp_path: Path) -> None:
    launcher = command(tmp_path, 'echo "$CUDA_VISIBLE_DEVICES|$1|$2"')
    run_builder(("trtllm-build", "a b", "$(touch x)"), launcher, CACHE, tmp_path / "build.log", silent)
    assert (tmp_path / "build.log").read_text() == "GPU-1,GPU-2|a b|$(touch x)\n"


def test_progress_is_what_the_builder_said_last(tmp_path: Path) -> None:
    line = "[08/27/2025-08:22:30] [TRT] [I] [MemUsageChange] Init CUDA: CPU +26, GPU +0"
    launcher = command(
        tmp_path, f"echo starting; echo '{line}'; while [ ! -e {tmp_path}/heard ]; do sleep 0.01; done"
    )
    notes = []

    def advance(amount: int, note: str = "", /) -> None:
        notes.append(note)
        if "CUDA" in note:
            (tmp_path / "heard").touch()

    run_builder(("trtllm-build",), launcher, CACHE, tmp_path / "build.log", advance)
    assert "Init CUDA: CPU +26, GPU +0" in notes


def test_an_exception_from_progress_ends_the_builder_and_its_workers(tmp_path: Path) -> None:
    """A worker that outlives its builder would write a file."""
    launcher = command(tmp_path, "sleep 600 & echo started; wait")

    def advance(amount: int, note: str = "", /) -> None:
        if note == "started":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_builder(("trtllm-build",), launcher, CACHE, tmp_path / "build.log", advance)
    wait_until(lambda: not holders(tmp_path / "build.log"), "the end of both")


def holders(file: Path) -> list[str]:
    """The processes that have the file open."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if str(link.readlink()) == str(file):
                found.append(link.parts[2])
    return found
