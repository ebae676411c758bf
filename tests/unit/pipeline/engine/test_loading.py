from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtspec.backends.torch.builder import build_config
from trtspec.base.errors import EngineError
from trtspec.base.roles import Role
from trtspec.pipeline.engine.directory import (
    BuiltWith,
    PlacedEngine,
    Runtime,
    built_with,
    check_loading,
    write_config,
)
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.engine.manifest import Manifest

HERE = Runtime("1.2.1", "10.14.1.48", (90,))
BUILT = BuiltWith("10.14.1.48", 90)


def write(folder: Path, drafts: int, version: str = "1.2.1", ranks: int = 1, **changes: Any) -> Path:
    """An engine directory; `changes` are to its build options, or else to its `build_config`."""
    sizes = {"max_batch_size": 4, "max_input_len": 255, "max_seq_len": 256, "max_num_tokens": 8192}
    options = BuildOptions(
        **{name: changes.pop(name, size) for name, size in sizes.items()}, max_draft_len=drafts
    )
    vocab_size = changes.pop("vocab_size", 100)
    mapping = {"world_size": ranks, "tp_size": ranks, "pp_size": 1}
    pretrained = {
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "vocab_size": vocab_size,
        "mapping": mapping,
    }
    folder.mkdir()
    write_config(folder, version, pretrained, build_config(options, "bfloat16") | changes)
    suffix = "safetensors" if version.startswith("trtspec-torch") else "engine"
    for rank in range(ranks):
        (folder / f"rank{rank}.{suffix}").touch()
    return folder


def check(
    tmp_path: Path,
    target: dict[str, Any] | None = None,
    draft: dict[str, Any] | None = None,
    num_draft_tokens: int = 8,
    tokenizer_size: int = 100,
    built: BuiltWith = BUILT,
    draft_built: BuiltWith | None = None,
    runtime: Runtime = HERE,
    target_gpus: tuple[int, ...] = (0,),
    draft_gpus: tuple[int, ...] = (0,),
) -> None:
    ours = write(tmp_path / "target", **{"drafts": 8, **(target or {})})
    theirs = write(tmp_path / "draft", **{"drafts": 0, **(draft or {})})
    engines = {
        Role.TARGET: PlacedEngine(ours, target_gpus, built),
        Role.DRAFT: PlacedEngine(theirs, draft_gpus, draft_built or built),
    }
    check_loading(engines, num_draft_tokens, dict.fromkeys(engines, tokenizer_size), runtime)


def test_a_pair_that_loads(tmp_path: Path) -> None:
    check(tmp_path)


@pytest.mark.parametrize(
    ("built", "runtime"),
    [
        (BuiltWith(), HERE),
        (BUILT, Runtime("1.2.1", None, (90,))),
        (BUILT, Runtime("1.2.1", "10.14.1.48.post1", (90, 89))),
    ],
)
def test_unknown_versions_and_unused_graphics_cards_are_not_compared(
    tmp_path: Path, built: BuiltWith, runtime: Runtime
) -> None:
    check(tmp_path, built=built, runtime=runtime)


@pytest.mark.parametrize("runtime", [HERE, Runtime(None, None, ())])
def test_the_torch_backend_needs_nothing_of_nvidia(tmp_path: Path, runtime: Runtime) -> None:
    engines = {"version": "trtspec-torch 0.1.0"}
    check(tmp_path, engines, engines, built=BuiltWith(), runtime=runtime)


@pytest.mark.parametrize(
    ("changes", "problem", "repair"),
    [
        (
            {"runtime": Runtime(None, None, (90,))},
            "needs TensorRT-LLM 1.2.1, which is not installed here",
            "serve it with nvcr.io/nvidia/tritonserver:26.06-trtllm-python-py3",
        ),
        (
            {"runtime": Runtime("1.1.0", "10.13.3.9", (90,))},
            "was built by TensorRT-LLM 1.2.1, but this is 1.1.0",
            "26.06-trtllm-python-py3, or build it again with release: 1.1.0",
        ),
        (
            {"target": {"version": "1.3.0rc4"}},
            "was built by TensorRT-LLM 1.3.0rc4, but this is 1.2.1",
            "the image that built it, or build it again with release: 1.2.1",
        ),
        (
            {"runtime": Runtime("1.2.1", "10.13.3.9", (90,))},
            "was built by TensorRT 10.14.1.48, but this is 10.13.3.9",
            "or build it again here",
        ),
        (
            {"runtime": Runtime("1.2.1", None, (89,))},
            "was built for SM 90, but this GPU has SM 89",
            "build it again on this one",
        ),
        (
            {"runtime": Runtime("1.2.1", None, ())},
            "runs on GPU 0 of its server, and 0 are visible here",
            "--gpus all",
        ),
        (
            {"draft": {}, "draft_built": BuiltWith("10.13.3.9", 90)},
            "was built by TensorRT 10.13.3.9, but this is 10.14.1.48",
            "or build it again here",
        ),
        ({"target": {"ranks": 2}}, "has 2 ranks, but its recipe has 1", "build it again"),
        (
            {"target": {"ranks": 2}, "target_gpus": (0, 1)},
            "runs on GPUs 0, 1 of its server, and 1 is visible here",
            "hardware.count",
        ),
        (
            {"draft": {}, "draft_gpus": (1,)},
            "runs on GPU 1 of its server, and 1 is visible here",
            "hardware.count",
        ),
        (
            {"draft": {}, "draft_gpus": (1,), "runtime": Runtime("1.2.1", None, (90, 89))},
            "was built for SM 90, but this GPU has SM 89",
            "build it again on this one",
        ),
        ({"target": {"drafts": 0}}, "verifies no drafts", "trtspec build"),
        (
            {"target": {"drafts": 4}},
            "verifies drafts of up to 4 tokens, but num_draft_tokens is 8",
            "num_draft_tokens: 4",
        ),
        (
            {"target": {"plugin_config": {"use_paged_context_fmha": False}}},
            "cannot reuse KV blocks",
            "build the engine again",
        ),
        ({"draft": {"kv_cache_type": "CONTINUOUS"}}, "is continuous, not paged", "build the engine again"),
        ({"draft": {"max_beam_width": 4}}, "was built for beam search", "build the engine again"),
        ({"draft": {"drafts": 8}}, "built for mode 2 with max_draft_len 8", "build the engine again"),
        (
            {"draft": {"vocab_size": 64}},
            "has a vocabulary of 64, but the tokenizer has ids up to 99",
            "one recipe",
        ),
        ({"target": {"vocab_size": 64}}, "has a vocabulary of 64", "one recipe"),
        (
            {"draft": {"vocab_size": 99}},
            "has a vocabulary of 99, but the tokenizer has ids up to 99",
            "one recipe",
        ),
        (
            {"draft": {"max_seq_len": 128}},
            "reads sequences of 128 tokens, but the target's may have 256",
            "one recipe",
        ),
    ],
)
def test_an_engine_that_would_fail_to_load_is_refused_with_a_repair(
    tmp_path: Path, changes: dict[str, Any], problem: str, repair: str
) -> None:
    with pytest.raises(EngineError) as caught:
        check(tmp_path, **changes)
    assert problem in caught.value.problem
    assert repair in str(caught.value.repair)
    role = "draft" if "draft" in changes else "target"
    assert caught.value.subject == str(tmp_path / role)


def manifest(**changes: Any) -> Manifest:
    made = Manifest("pair", "0" * 64, "tensorrt_llm", {}, {}, {"tensorrt": "10.14.1.48"}, {"sm": 90}, {})
    return replace(made, **changes)


def test_the_versions_that_an_engine_was_built_with_come_from_its_manifest() -> None:
    assert built_with(None, Role.TARGET) == BuiltWith()
    assert built_with(manifest(), Role.TARGET) == BUILT
    assert built_with(manifest(tools={}, gpu=None), Role.TARGET) == BuiltWith()


def test_a_pulled_engine_keeps_the_versions_of_the_machine_that_built_it() -> None:
    """The machine that pulled it may have no GPU, or another TensorRT."""
    made = {"tools": {"tensorrt": "10.14.1.48"}, "gpu": {"sm": 90}}
    here = manifest(tools={"tensorrt": "10.13.3.9"}, gpu={"sm": 80}, pulled={"target": made})
    assert built_with(here, Role.TARGET) == BUILT
    assert built_with(here, Role.DRAFT) == BuiltWith("10.13.3.9", 80)
    assert built_with(manifest(pulled={"target": {"gpu": None}}), Role.TARGET) == BuiltWith()
