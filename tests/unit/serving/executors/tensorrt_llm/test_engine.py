"""What an engine directory says, and which are refused before they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.bindings import change_config
from tests.fakes.engine_dir import tiny_model
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Limits, LogitsFormat
from trtspec.serving.executors.tensorrt_llm.engine import read_engine


def test_limits_are_those_of_the_runtime(write: Any) -> None:
    """The longest prompt leaves room for one token, whatever max_input_len was given to the build."""
    limits = Limits(
        *(4, 127, 128, 6, 96),
        ignored_options=frozenset({"min_p"}),
        returns_log_probs=False,
        max_top_log_probs=0,
        never_banned=range(1),
        matches_samples=False,
        draft_logits=LogitsFormat(96, "float32"),
        tokens_per_block=32,
    )
    assert read_engine(write(max_input_len=7), "1.2.1").limits == limits
    draft = read_engine(write("draft", speculative_decoding_mode=1), "1.2.1").limits
    assert (draft.max_draft_len, draft.ignored_options) == (0, frozenset())


def test_a_prompt_that_is_read_at_once_fits_an_iteration(write: Any) -> None:
    folder = write(max_num_tokens=100)
    assert read_engine(folder, "1.2.1", enable_chunked_context=False).limits.max_input_len == 100
    assert read_engine(folder, "1.2.1", enable_chunked_context=True).limits.max_input_len == 127


def test_memory(write: Any) -> None:
    """2 layers of 2 heads of 8 numbers, keys and values; the file, and weights that lie beside it."""
    folder = write()
    (folder / "rank0_managed_weights.safetensors").write_bytes(b"x" * 1000)
    engine = read_engine(folder, "1.2.1")
    assert engine.weight_bytes == (folder / "rank0.engine").stat().st_size + 1000
    assert engine.kv_bytes == 2 * 2 * 2 * 8 * 4
    change_config(folder, "pretrained_config", dtype="bfloat16")
    assert read_engine(folder, "1.2.1").kv_bytes == 2 * 2 * 2 * 8 * 2
    change_config(folder, "pretrained_config", quantization={"kv_cache_quant_algo": "FP8"})
    assert read_engine(folder, "1.2.1").kv_bytes == 2 * 2 * 2 * 8
    change_config(folder, "pretrained_config", head_size=None, num_key_value_heads=None)
    assert read_engine(folder, "1.2.1").kv_bytes == 2 * 2 * 48


@pytest.mark.parametrize(("window", "told"), [(None, None), (16, 16), (127, 127), (128, None), (4096, None)])
def test_an_engine_on_disk_has_a_sliding_window_only_if_a_text_can_outgrow_it(
    write: Any, window: int | None, told: int | None
) -> None:
    folder = write(model=tiny_model("mistral", sliding_window=window))
    assert read_engine(folder, "1.2.1").max_attention_window == told


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another release": ("", {"version": "1.1.0"}, "was built by TensorRT-LLM 1.1.0, but this is 1.2.1"),
    "two ranks": ("pretrained_config", {"mapping": {"world_size": 2}}, "has 2 ranks, .* layout: bls"),
    "no reuse": (
        "build_config",
        {"plugin_config": {"use_paged_context_fmha": False}},
        "built without use_paged_context_fmha",
    ),
    "a size that is none": ("build_config", {"max_seq_len": "long"}, "not an engine's config.json"),
    "a dtype that is none": ("pretrained_config", {"dtype": "int3"}, "has no int3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(write: Any, name: str) -> None:
    section, changes, problem = REFUSED[name]
    folder = write()
    change_config(folder, section, **changes)
    with pytest.raises(EngineLoadError, match=problem):
        read_engine(folder, "1.2.1")


def test_folders_that_are_no_engines(write: Any, tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match=r"config\.json: no such file; is this an engine directory"):
        read_engine(tmp_path, "1.2.1")
    folder = write()
    (folder / "rank0.engine").rename(folder / "rank1.engine")
    with pytest.raises(EngineLoadError, match=r"has no rank0\.engine"):
        read_engine(folder, "1.2.1")
    (folder / "config.json").write_text("{")
    with pytest.raises(EngineLoadError, match=r"not an engine's config\.json"):
        read_engine(folder, "1.2.1")
    (folder / "config.json").write_text('{"version": "1.2.1", "pretrained_config": {}}')
    with pytest.raises(EngineLoadError, match="has no build_config"):
        read_engine(folder, "1.2.1")
